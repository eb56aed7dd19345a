//! Extracts one string field of a JSON object, in a streaming way.
//!
//! The whole line is validated, but not kept: memory is the nesting (at most `DEPTH` levels) and a key no longer than
//! the field's name. The same reader is used for lines within a block and for lines of any length, so both give the
//! same text and the same errors. serde_json is the oracle in the tests; it is not used because it needs the whole line
//! in memory and rejects lone surrogates, which Python's `json.dumps` writes.
//!
//! Beyond RFC 8259: `NaN`, `Infinity` and `-Infinity` are accepted (Python writes them). A lone surrogate escape
//! becomes U+FFFD. If a field occurs twice, the last counts, as in Python, jq and pandas.

use super::unescape::Unescaper;

const DEPTH: usize = 1024;

/// Why a line has no text, found at byte `at` of the last input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub kind: FaultKind,
    pub at: usize,
    /// In bytes from the start of the line, from 1.
    pub column: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// Not a JSON object: what is wrong.
    Json(&'static str),
    Missing,
    NotAString,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fed {
    /// All of the input is consumed and the line continues.
    More,
    /// The line ended; the next begins at this byte of the input.
    LineEnd(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    Blank,
    Text,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Container {
    Object,
    Array,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Expect {
    Object,
    FirstKey,
    Key,
    Colon,
    Value,
    FirstValue,
    /// A comma or the end of the container.
    Next,
    End,
    /// Inside a string.
    String,
    /// Inside a number.
    Number(Number),
    /// Inside a literal: the rest of it.
    Word(&'static [u8]),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    E,
    ESign,
    Exponent,
}

/// What the string being read is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Key,
    SkippedKey,
    Skipped,
    Text,
}

/// What the value of the last key is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    None,
    Text,
    /// An object that may contain the field, whose name continues at this byte.
    Inside(usize),
}

pub(super) struct FieldReader<'f> {
    field: &'f str,
    expect: Expect,
    containers: Vec<Container>,
    /// For each of the outermost containers whose keys match the field so far: where in `field` the rest begins.
    matched: Vec<usize>,
    role: Role,
    target: Target,
    key: String,
    key_too_long: bool,
    string: Unescaper,
    found: bool,
    /// The field's last value so far is something other than a string.
    not_a_string: bool,
    /// Where in `out` the text of this line begins.
    text_start: usize,
    /// The text that begins replaces an earlier one.
    again: bool,
    /// Set when that has happened, for a caller that has stored the first text elsewhere.
    pub replaced: bool,
    fed_before: u64,
    /// In the field's text.
    pub lone_surrogates: u64,
}

impl<'f> FieldReader<'f> {
    pub fn new(field: &'f str) -> FieldReader<'f> {
        FieldReader {
            field,
            expect: Expect::Object,
            containers: Vec::new(),
            matched: Vec::new(),
            role: Role::Skipped,
            target: Target::None,
            key: String::new(),
            key_too_long: false,
            string: Unescaper::new(),
            found: false,
            not_a_string: false,
            text_start: 0,
            again: false,
            replaced: false,
            fed_before: 0,
            lone_surrogates: 0,
        }
    }

    /// Prepares for the next line, whose text comes after `text_start` bytes of others.
    pub fn start_line(&mut self, text_start: usize) {
        self.text_start = text_start;
        self.again = false;
        self.replaced = false;
        self.expect = Expect::Object;
        self.containers.clear();
        self.matched.clear();
        self.found = false;
        self.not_a_string = false;
        self.fed_before = 0;
        self.lone_surrogates = 0;
    }

    /// Reads up to the end of the line or of `input`, and appends the field's text to `out`. After a fault the caller
    /// has to skip the rest of the line; its end is at or after `Fault::at`.
    pub fn feed(&mut self, input: &str, out: &mut String) -> Result<Fed, Fault> {
        let bytes = input.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            let step = match self.expect {
                Expect::String => self.string(input, &mut at, out),
                Expect::Number(state) => self.number(bytes[at], &mut at, state),
                Expect::Word(rest) if bytes[at] == rest[0] => {
                    at += 1;
                    self.expect = match &rest[1..] {
                        [] => Expect::Next,
                        rest => Expect::Word(rest),
                    };
                    Ok(())
                }
                Expect::Word(_) => Err(FaultKind::Json("unknown literal")),
                _ => match bytes[at] {
                    b' ' | b'\t' | b'\r' => {
                        at += 1;
                        Ok(())
                    }
                    b'\n' => {
                        self.fed_before += at as u64;
                        return Ok(Fed::LineEnd(at + 1));
                    }
                    byte => {
                        let step = self.structure(byte);
                        at += usize::from(step.is_ok());
                        step
                    }
                },
            };
            step.map_err(|kind| self.fault(kind, at))?;
        }
        self.fed_before += bytes.len() as u64;
        Ok(Fed::More)
    }

    /// To be called at the end of a line without a fault.
    pub fn finish(&self) -> Result<Line, Fault> {
        match self.expect {
            Expect::Object => Ok(Line::Blank),
            Expect::End if self.not_a_string => Err(self.fault(FaultKind::NotAString, 0)),
            Expect::End if self.found => Ok(Line::Text),
            Expect::End => Err(self.fault(FaultKind::Missing, 0)),
            _ => Err(self.fault(FaultKind::Json("unexpected end of the line"), 0)),
        }
    }

    fn fault(&self, kind: FaultKind, at: usize) -> Fault {
        Fault { kind, at, column: self.fed_before + at as u64 + 1 }
    }

    /// One byte of punctuation, or the first of a value.
    fn structure(&mut self, byte: u8) -> Result<(), FaultKind> {
        use Container::{Array, Object};
        match (self.expect, byte) {
            (Expect::Object, b'{') => {
                self.matched.push(0);
                self.open(Object, Expect::FirstKey)
            }
            (Expect::Object, _) => Err(FaultKind::Json("not an object")),
            (Expect::FirstKey | Expect::Key, b'"') => {
                self.start_key();
                Ok(())
            }
            (Expect::FirstKey, b'}') => {
                self.close();
                Ok(())
            }
            (Expect::FirstKey | Expect::Key, _) => Err(FaultKind::Json("expected a key in quotes")),
            (Expect::Colon, b':') => {
                self.expect = Expect::Value;
                Ok(())
            }
            (Expect::Colon, _) => Err(FaultKind::Json("expected a colon")),
            (Expect::FirstValue, b']') => {
                self.close();
                Ok(())
            }
            (Expect::Value | Expect::FirstValue, _) => self.value(byte),
            (Expect::Next, b',') => {
                self.expect = match self.containers.last() {
                    Some(Object) => Expect::Key,
                    _ => Expect::Value,
                };
                self.target = Target::None;
                Ok(())
            }
            (Expect::Next, b'}') if self.containers.last() == Some(&Object) => {
                self.close();
                Ok(())
            }
            (Expect::Next, b']') if self.containers.last() == Some(&Array) => {
                self.close();
                Ok(())
            }
            (Expect::Next, _) => Err(FaultKind::Json("expected a comma or a closing bracket")),
            _ => Err(FaultKind::Json("unexpected text after the object")),
        }
    }

    fn value(&mut self, first: u8) -> Result<(), FaultKind> {
        let target = std::mem::replace(&mut self.target, Target::None);
        if target == Target::Text {
            self.not_a_string = first != b'"';
        }
        self.expect = match first {
            b'"' => {
                self.role = if target == Target::Text { Role::Text } else { Role::Skipped };
                self.again = target == Target::Text && self.found;
                self.start_string();
                return Ok(());
            }
            b'{' => {
                if let Target::Inside(rest) = target {
                    self.matched.push(rest);
                }
                return self.open(Container::Object, Expect::FirstKey);
            }
            b'[' => return self.open(Container::Array, Expect::FirstValue),
            b'-' => Expect::Number(Number::Minus),
            b'0' => Expect::Number(Number::Zero),
            b'1'..=b'9' => Expect::Number(Number::Whole),
            b't' => Expect::Word(b"rue"),
            b'f' => Expect::Word(b"alse"),
            b'n' => Expect::Word(b"ull"),
            b'N' => Expect::Word(b"aN"),
            b'I' => Expect::Word(b"nfinity"),
            _ => return Err(FaultKind::Json("expected a value")),
        };
        Ok(())
    }

    fn open(&mut self, container: Container, expect: Expect) -> Result<(), FaultKind> {
        if self.containers.len() == DEPTH {
            return Err(FaultKind::Json("nested more than 1024 levels deep"));
        }
        self.containers.push(container);
        self.expect = expect;
        Ok(())
    }

    fn close(&mut self) {
        self.containers.pop();
        self.matched.truncate(self.containers.len());
        self.expect = if self.containers.is_empty() { Expect::End } else { Expect::Next };
    }

    fn number(&mut self, byte: u8, at: &mut usize, state: Number) -> Result<(), FaultKind> {
        use Number::*;
        let next = match (state, byte) {
            (Minus, b'0') => Zero,
            (Minus, b'1'..=b'9') | (Whole, b'0'..=b'9') => Whole,
            (Minus, b'I') => {
                *at += 1;
                self.expect = Expect::Word(b"nfinity");
                return Ok(());
            }
            (Zero | Whole, b'.') => Point,
            (Point | Fraction, b'0'..=b'9') => Fraction,
            (Zero | Whole | Fraction, b'e' | b'E') => E,
            (E, b'+' | b'-') => ESign,
            (E | ESign | Exponent, b'0'..=b'9') => Exponent,
            (Zero | Whole | Fraction | Exponent, _) => {
                // The byte is not part of the number; it is processed again.
                self.expect = Expect::Next;
                return Ok(());
            }
            _ => return Err(FaultKind::Json("invalid number")),
        };
        *at += 1;
        self.expect = Expect::Number(next);
        Ok(())
    }

    /// Continues inside a string, to its end or that of the input.
    fn string(&mut self, input: &str, at: &mut usize, out: &mut String) -> Result<(), FaultKind> {
        if std::mem::take(&mut self.again) {
            out.truncate(self.text_start);
            self.replaced = true;
        }
        let (key, longest) = (&mut self.key, self.field.len());
        let ended = match self.role {
            Role::Text => self.string.read(input, at, |text| out.push_str(text)),
            Role::Key => self.string.read(input, at, |text| {
                if key.len() + text.len() <= longest {
                    key.push_str(text);
                } else {
                    self.key_too_long = true;
                }
            }),
            Role::SkippedKey | Role::Skipped => self.string.read(input, at, |_| ()),
        };
        if ended.map_err(FaultKind::Json)? {
            self.end_string();
        }
        Ok(())
    }

    fn start_key(&mut self) {
        let may_match = self.matched.len() == self.containers.len();
        self.role = if may_match { Role::Key } else { Role::SkippedKey };
        self.key.clear();
        self.key_too_long = false;
        self.start_string();
    }

    fn start_string(&mut self) {
        self.string = Unescaper::new();
        self.expect = Expect::String;
    }

    fn end_string(&mut self) {
        self.expect = match self.role {
            Role::Key => {
                self.target = self.target_of_key();
                Expect::Colon
            }
            Role::SkippedKey => {
                self.target = Target::None;
                Expect::Colon
            }
            Role::Skipped => Expect::Next,
            Role::Text => {
                self.found = true;
                self.lone_surrogates = self.string.lone_surrogates;
                Expect::Next
            }
        };
    }

    fn target_of_key(&self) -> Target {
        let start = *self.matched.last().expect("the root object is matched");
        match self.field[start..].strip_prefix(self.key.as_str()) {
            _ if self.key_too_long => Target::None,
            Some("") => Target::Text,
            Some(rest) if rest.starts_with('.') => Target::Inside(start + self.key.len() + 1),
            _ => Target::None,
        }
    }
}
