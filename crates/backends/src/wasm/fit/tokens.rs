//! The tokens of Python source, as far as a look at its imports needs them.
//!
//! Strings and comments are told from code, lines that go on are one line, and every token knows how
//! its line is indented. What is no Python gives some tokens or other: nothing here fails.

/// One token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// A name or a keyword.
    Name(String),
    /// A string, if it is one whose text can be had without running anything.
    Text(Option<String>),
    /// Anything else that stands for itself: `.`, `(`, `:`. Numbers are `0`.
    Sign(char),
    /// A logical line ends.
    End,
}

/// A token and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) token: Token,
    /// The line, counted from 1.
    pub(super) line: usize,
    /// The indentation of the logical line, in columns.
    pub(super) indent: usize,
}

/// The columns of a tab stop: `Reference Manual`, "Indentation".
const TAB: usize = 8;

/// Takes source apart.
pub(super) fn tokens(source: &str) -> Vec<Placed> {
    let mut scan = Scan {
        letters: source.chars().collect(),
        at: 0,
        line: 1,
        indent: 0,
        open: 0,
        fresh: true,
        found: vec![],
    };
    while scan.at < scan.letters.len() {
        scan.step();
    }
    scan.push(Token::End);
    scan.found
}

struct Scan {
    letters: Vec<char>,
    at: usize,
    line: usize,
    indent: usize,
    /// Brackets that are open.
    open: usize,
    /// Whether nothing of the logical line has come yet.
    fresh: bool,
    found: Vec<Placed>,
}

impl Scan {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.letters.get(self.at + ahead).copied()
    }

    /// Goes on by one letter.
    fn next(&mut self) -> Option<char> {
        let letter = self.peek(0)?;
        self.at += 1;
        if letter == '\n' {
            self.line += 1;
        }
        Some(letter)
    }

    fn push(&mut self, token: Token) {
        self.fresh = false;
        self.found.push(Placed { token, line: self.line, indent: self.indent });
    }

    fn step(&mut self) {
        if self.fresh && self.open == 0 && self.measure() {
            return;
        }
        let Some(letter) = self.peek(0) else { return };
        match letter {
            '\n' => {
                if self.open == 0 && !self.fresh {
                    self.push(Token::End);
                }
                self.fresh |= self.open == 0;
                self.next();
            }
            '\\' => {
                self.next();
                if self.peek(0) == Some('\r') {
                    self.next();
                }
                self.next();
            }
            '#' => self.comment(),
            '"' | '\'' => self.string(""),
            _ if letter.is_whitespace() => drop(self.next()),
            _ if letter.is_alphabetic() || letter == '_' => self.word(),
            _ if letter.is_ascii_digit() => self.number(),
            _ => {
                match letter {
                    '(' | '[' | '{' => self.open += 1,
                    ')' | ']' | '}' => self.open = self.open.saturating_sub(1),
                    _ => {}
                }
                self.push(Token::Sign(letter));
                self.next();
            }
        }
    }

    /// Measures the indentation of a logical line that begins. True if there is nothing in it.
    fn measure(&mut self) -> bool {
        self.indent = 0;
        while let Some(letter) = self.peek(0) {
            match letter {
                ' ' => self.indent += 1,
                '\t' => self.indent = (self.indent / TAB + 1) * TAB,
                '\u{c}' | '\u{feff}' => self.indent = 0,
                '\n' | '#' | '\r' => break,
                _ => return false,
            }
            self.at += 1;
        }
        self.comment();
        self.next();
        true
    }

    /// Leaves out what follows to the end of the line.
    fn comment(&mut self) {
        while self.peek(0).is_some_and(|letter| letter != '\n') {
            self.at += 1;
        }
    }

    fn number(&mut self) {
        while self.peek(0).is_some_and(|letter| letter.is_alphanumeric() || letter == '_') {
            self.at += 1;
        }
        self.push(Token::Sign('0'));
    }

    fn word(&mut self) {
        let start = self.at;
        while self.peek(0).is_some_and(|letter| letter.is_alphanumeric() || letter == '_') {
            self.at += 1;
        }
        let word: String = self.letters[start..self.at].iter().collect();
        let quoted = matches!(self.peek(0), Some('"' | '\''));
        let prefix = word.len() <= 2 && word.chars().all(|c| "rRbBuUfFtT".contains(c));
        if quoted && prefix {
            self.string(&word.to_lowercase());
        } else {
            self.push(Token::Name(word));
        }
    }

    /// A string from its quote on.
    fn string(&mut self, prefix: &str) {
        let line = self.line;
        let formatted = prefix.contains(['f', 't']);
        let text = self.quoted(formatted);
        let text = text.filter(|_| !formatted && !prefix.contains('b'));
        self.push(Token::Text(text));
        // It is where it begins.
        if let Some(last) = self.found.last_mut() {
            last.line = line;
        }
    }

    /// Takes a string; gives its text if nothing in it has to be worked out.
    fn quoted(&mut self, formatted: bool) -> Option<String> {
        let quote = self.next()?;
        let triple = self.peek(0) == Some(quote) && self.peek(1) == Some(quote);
        if triple {
            self.at += 2;
        } else if self.peek(0) == Some(quote) {
            self.at += 1;
            return Some(String::new());
        }
        let (mut text, mut plain) = (String::new(), true);
        while let Some(letter) = self.peek(0) {
            if letter == '\n' && !triple {
                break; // it isn't ended: nothing more of it than this line
            }
            if letter == quote && (!triple || (self.peek(1) == Some(quote) && self.peek(2) == Some(quote))) {
                self.at += if triple { 3 } else { 1 };
                break;
            }
            if formatted && letter == '{' {
                plain = false;
                self.field();
                continue;
            }
            self.next();
            if letter == '\\' {
                plain = false;
                self.next();
                continue;
            }
            text.push(letter);
        }
        plain.then_some(text)
    }

    /// What stands in the braces of a formatted string, which may hold strings of its own.
    fn field(&mut self) {
        self.next();
        if self.peek(0) == Some('{') {
            self.next();
            return;
        }
        let mut open = 1;
        while let Some(letter) = self.peek(0) {
            match letter {
                '{' => open += 1,
                '}' => open -= 1,
                '\'' | '"' => {
                    self.quoted(false);
                    continue;
                }
                '\n' => return,
                _ => {}
            }
            self.next();
            if open == 0 {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(source: &str) -> String {
        let words = tokens(source).into_iter().map(|placed| match placed.token {
            Token::Name(name) => name,
            Token::Text(Some(text)) => format!("<{text}>"),
            Token::Text(None) => "<?>".to_owned(),
            Token::Sign(sign) => sign.to_string(),
            Token::End => ";".to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn strings_and_comments_are_no_code() {
        for (source, expected) in [
            ("a = 'import x' # import y\nb", "a = <import x> ; b ;"),
            ("'''\nimport x\n'''\nimport y", "<\nimport x\n> ; import y ;"),
            ("\"\"\"a\"b\\\"\"\"\"", "<?> ;"),
            ("f'{a[\"b\"]}' c", "<?> c ;"),
            ("f\"{a[\"b\"]}\" c", "<?> c ;"),
            ("f'{{not}}' c", "<?> c ;"),
            ("rb'\\' c", "<?> ;"),
            ("r'\\d' c", "<?> c ;"),
            ("b'x' u'y' ''", "<?> <y> <> ;"),
            ("'never ended\nimport x", "<never ended> ; import x ;"),
            ("x = 0x1f + 1_000.5e3", "x = 0 + 0 . 0 ;"),
        ] {
            assert_eq!(told(source), expected, "{source}");
        }
    }

    #[test]
    fn a_line_that_goes_on_is_one() {
        assert_eq!(told("from a import (b,\n  # c\n  d)\ne"), "from a import ( b , d ) ; e ;");
        assert_eq!(told("import \\\n  a\nb"), "import a ; b ;");
        assert_eq!(told("import \\\r\n  a\r\nb\r\n"), "import a ; b ; ;");
    }

    #[test]
    fn a_token_knows_its_line_and_how_that_is_indented() {
        let found = tokens("a\n\n  # x\n\tb\n    c\n'''\n'''\nd");
        let places: Vec<_> = found
            .iter()
            .filter(|placed| placed.token != Token::End)
            .map(|placed| (placed.line, placed.indent))
            .collect();
        assert_eq!(places, [(1, 0), (4, 8), (5, 4), (6, 0), (8, 0)]);
    }

    #[test]
    fn anything_at_all_comes_to_an_end() {
        for source in ["", "\\", "'", "'''", "f'{", "f'{'", "\u{feff}import a", ")))", "\0\x01", "é = 'ü'"]
        {
            assert!(!tokens(source).is_empty());
        }
        assert_eq!(told("\u{feff}import a"), "import a ;");
    }
}
