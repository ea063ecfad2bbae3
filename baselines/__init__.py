"""Provides the classic captioners: RNN, LSTM, LSTM with attention, and Show, Attend and Tell."""
