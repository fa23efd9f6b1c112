"""What reaches an open page by itself: topics, the websocket and its long poll."""
