"""Marks of single cases, and which tests of a file the quick run has, read from its source."""

import ast

import pytest

LEFT_OUT = {"slow", "soak"}


def slow(*values):
    """Return a case of a parametrized test that the quick run leaves out."""
    return pytest.param(*values, marks=pytest.mark.slow)


def quick_tests(text):
    """Return the names of the test functions of a source that have a case without these markers."""
    body = ast.parse(text).body
    assigned = [node for node in body if isinstance(node, ast.Assign)]
    for node in assigned:
        if ast.unparse(node.targets[0]) == "pytestmark" and markers(node.value) & LEFT_OUT:
            return []
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    tests = [node for node in functions if node.name.startswith("test")]
    return [test.name for test in tests if not any(map(_is_left_out, test.decorator_list))]


def markers(node):
    """Return the names X of each pytest.mark.X in a part of a source."""
    attributes = [inner for inner in ast.walk(node) if isinstance(inner, ast.Attribute)]
    return {each.attr for each in attributes if ast.unparse(each.value) == "pytest.mark"}


def _is_left_out(decorator):
    """Whether a decorator leaves out the test: by its marker, or by that of every parameter."""
    if not isinstance(decorator, ast.Call):
        return bool(markers(decorator) & LEFT_OUT)
    if ast.unparse(decorator.func) != "pytest.mark.parametrize":
        return bool(markers(decorator.func) & LEFT_OUT)
    cases = getattr(decorator.args[1], "elts", [])
    return bool(cases) and all(markers(case) & LEFT_OUT for case in cases)
