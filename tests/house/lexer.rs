//! Rust source as words and signs, without comments, strings and tests.

/// One word or sign and the line on which it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
}

/// Returns the words and signs of a file, without the items behind `#[cfg(test)]`.
pub(crate) fn tokens(source: &str) -> Vec<Token> {
    without_tests(Lexer::new(source).run())
}

struct Lexer {
    rest: Vec<char>,
    at: usize,
    line: usize,
}

impl Lexer {
    fn new(source: &str) -> Self {
        Self {
            rest: source.chars().collect(),
            at: 0,
            line: 1,
        }
    }

    fn run(mut self) -> Vec<Token> {
        let mut found = Vec::new();
        while let Some(next) = self.peek(0) {
            let line = self.line;
            if let Some(text) = self.token(next) {
                found.push(Token { text, line });
            }
        }
        found
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.rest.get(self.at + ahead).copied()
    }

    fn step(&mut self) -> Option<char> {
        let next = self.peek(0)?;
        self.at += 1;
        self.line += usize::from(next == '\n');
        Some(next)
    }

    fn starts_with(&self, text: &str) -> bool {
        text.chars()
            .enumerate()
            .all(|(ahead, c)| self.peek(ahead) == Some(c))
    }

    fn token(&mut self, next: char) -> Option<String> {
        if self.starts_with("//") {
            return self.skip_while(|c| c != '\n');
        }
        if self.starts_with("/*") {
            return self.skip_block_comment();
        }
        if next == '"' {
            return self.skip_string();
        }
        if next == '\'' {
            return self.skip_char_or_lifetime();
        }
        if next.is_alphanumeric() || next == '_' {
            return self.word();
        }
        self.sign(next)
    }

    fn sign(&mut self, next: char) -> Option<String> {
        if self.starts_with("::") {
            self.at += 2;
            return Some("::".into());
        }
        self.step();
        (!next.is_whitespace()).then(|| next.to_string())
    }

    fn word(&mut self) -> Option<String> {
        let start = self.at;
        self.skip_while(|c| c.is_alphanumeric() || c == '_');
        let word: String = self.rest[start..self.at].iter().collect();
        let raw = matches!(word.as_str(), "r" | "br" | "cr");
        if raw && matches!(self.peek(0), Some('"' | '#')) {
            return self.skip_raw_string();
        }
        Some(word)
    }

    fn skip_while(&mut self, wanted: impl Fn(char) -> bool) -> Option<String> {
        while self.peek(0).is_some_and(&wanted) {
            self.step();
        }
        None
    }

    fn skip_block_comment(&mut self) -> Option<String> {
        let mut depth = 0;
        loop {
            if self.starts_with("/*") {
                depth += 1;
                self.at += 2;
            } else if self.starts_with("*/") {
                depth -= 1;
                self.at += 2;
            } else {
                self.step()?;
            }
            if depth == 0 {
                return None;
            }
        }
    }

    fn skip_string(&mut self) -> Option<String> {
        self.step();
        loop {
            match self.step()? {
                '\\' => self.step(),
                '"' => return None,
                _ => continue,
            };
        }
    }

    fn skip_raw_string(&mut self) -> Option<String> {
        let start = self.at;
        self.skip_while(|c| c == '#');
        let end = format!("\"{}", "#".repeat(self.at - start));
        self.step();
        while !self.starts_with(&end) {
            self.step()?;
        }
        self.at += end.chars().count();
        None
    }

    fn skip_char_or_lifetime(&mut self) -> Option<String> {
        self.step();
        let escaped = self.peek(0) == Some('\\');
        if !escaped && self.peek(1) != Some('\'') {
            return None; // a lifetime: its name follows as a word
        }
        if escaped {
            self.step();
        }
        self.step();
        self.skip_while(|c| c != '\'');
        self.step();
        None
    }
}

fn without_tests(tokens: Vec<Token>) -> Vec<Token> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if is_test_attribute(&tokens[at..]) {
            at = end_of_item(&tokens, at);
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

fn is_test_attribute(tokens: &[Token]) -> bool {
    let texts: Vec<&str> = tokens
        .iter()
        .take(7)
        .map(|token| token.text.as_str())
        .collect();
    matches!(
        texts[..],
        ["#", "[", "cfg", "(", "test", ..] | ["#", "[", "cfg", "(", "all", "(", "test"]
    )
}

/// Returns where the item that begins at `at` ends: after its `;`, or after its closing brace.
fn end_of_item(tokens: &[Token], at: usize) -> usize {
    let mut depth = 0;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token.text.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        let last = matches!(token.text.as_str(), "}" | ";" | ",");
        if depth <= 0 && last {
            return index + 1;
        }
    }
    tokens.len()
}
