"""What the small languages of the tables share: tokens, and errors that point into the text."""

import re


class ParseError(ValueError):
    """A text that does not parse; the message shows it with a caret under the place."""

    def __init__(self, message: str, text: str, position: int) -> None:
        super().__init__(f"{message}\n    {text}\n    {' ' * position}^")


class Parser:
    """The tokens of a text, taken one by one.

    Args:
        text: What is parsed.
        token: A regular expression of blanks and one token, which is its first group.
    """

    def __init__(self, text: str, token: str | re.Pattern[str]) -> None:
        self.text = text
        self.tokens = [(m[1], m.start(1)) for m in re.finditer(token, text)]
        self.position = 0

    def peek(self, ahead: int = 0) -> str:
        """The next token, or one further on; "" after the last."""
        index = self.position + ahead
        return self.tokens[index][0] if index < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        """The next token, which must be the expected one if there is one."""
        token = self.peek()
        if not token or (expected and token != expected):
            wanted = repr(expected) if expected else "more"
            raise self.error(f"expected {wanted}, found {token!r}" if token else "ends too early")
        self.position += 1
        return token

    def take_end(self) -> None:
        """Nothing is left."""
        if self.peek():
            raise self.error(f"{self.peek()!r} does not belong here")

    def error(self, message: str, at: int | None = None) -> ParseError:
        """A mistake at a token, given by its number; the next one by default."""
        number = self.position if at is None else at
        ended = number >= len(self.tokens)
        place = len(self.text) if ended else self.tokens[number][1]
        return ParseError(message, self.text, place)
