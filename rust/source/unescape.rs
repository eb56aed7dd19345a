//! Decodes a JSON string, from its opening quote to its closing one, in a streaming way.

use super::scan::find_special;

/// The state of reading a string.
#[derive(Clone, Copy)]
pub(super) struct Unescaper {
    escape: Escape,
    /// The first half of a surrogate pair.
    high: Option<u16>,
    /// Halves without the other half, each replaced by U+FFFD.
    pub lone_surrogates: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Escape {
    None,
    Backslash,
    Hex { digits: u8, value: u16 },
}

impl Unescaper {
    /// Just after the opening quote.
    pub fn new() -> Unescaper {
        Unescaper { escape: Escape::None, high: None, lone_surrogates: 0 }
    }

    /// Reads from `at` to after the closing quote (true) or to the end of the input (false). After an error, `at` is at
    /// the invalid byte.
    pub fn read(
        &mut self,
        input: &str,
        at: &mut usize,
        mut append: impl FnMut(&str),
    ) -> Result<bool, &'static str> {
        let bytes = input.as_bytes();
        while *at < bytes.len() {
            match self.escape {
                Escape::None => {
                    let end = find_special(bytes, *at).unwrap_or(bytes.len());
                    if end > *at {
                        self.flush_high(&mut append);
                        append(&input[*at..end]);
                        *at = end;
                    }
                    match bytes.get(end) {
                        None => break,
                        Some(b'"') => {
                            *at += 1;
                            self.flush_high(&mut append);
                            return Ok(true);
                        }
                        Some(b'\\') => {
                            *at += 1;
                            self.escape = Escape::Backslash;
                        }
                        Some(b'\n') => return Err("the line ends inside a string"),
                        Some(_) => return Err("control character in a string"),
                    }
                }
                Escape::Backslash => {
                    let character = match bytes[*at] {
                        b'n' => "\n",
                        b'"' => "\"",
                        b'u' => "",
                        b'\\' => "\\",
                        b't' => "\t",
                        b'r' => "\r",
                        b'/' => "/",
                        b'b' => "\u{8}",
                        b'f' => "\u{c}",
                        _ => return Err("unknown escape"),
                    };
                    *at += 1;
                    if character.is_empty() {
                        self.escape = Escape::Hex { digits: 0, value: 0 };
                    } else {
                        self.escape = Escape::None;
                        self.flush_high(&mut append);
                        append(character);
                    }
                }
                Escape::Hex { digits, value } => {
                    let Some(digit) = char::from(bytes[*at]).to_digit(16) else {
                        return Err("invalid \\u escape");
                    };
                    *at += 1;
                    let value = value << 4 | digit as u16;
                    if digits == 3 {
                        self.escape = Escape::None;
                        self.code_unit(value, &mut append);
                    } else {
                        let digits = digits + 1;
                        self.escape = Escape::Hex { digits, value };
                    }
                }
            }
        }
        Ok(false)
    }

    /// A \uXXXX escape: a character, or half of one.
    fn code_unit(&mut self, unit: u16, append: &mut impl FnMut(&str)) {
        if let (Some(high), 0xDC00..0xE000) = (self.high, unit) {
            self.high = None;
            for character in char::decode_utf16([high, unit]).flatten() {
                append(character.encode_utf8(&mut [0; 4]));
            }
            return;
        }
        self.flush_high(append);
        match char::from_u32(unit.into()) {
            Some(character) => append(character.encode_utf8(&mut [0; 4])),
            None if unit < 0xDC00 => self.high = Some(unit),
            None => self.replace(append),
        }
    }

    fn flush_high(&mut self, append: &mut impl FnMut(&str)) {
        if self.high.take().is_some() {
            self.replace(append);
        }
    }

    fn replace(&mut self, append: &mut impl FnMut(&str)) {
        self.lone_surrogates += 1;
        append("\u{FFFD}");
    }
}
