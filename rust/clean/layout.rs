//! The layout of a text: no trailing blanks, at most two blank lines in a row, runs of blanks collapsed.
//!
//! The text has no replaceable characters at this point, so all its white space is blanks and `\n`.

use super::characters::{self, ASCII, BLANK, Characters};
use super::lines::Lines;

const MAX_BLANK_LINES: usize = 2;

/// Removes blanks at line ends, blank lines beyond two in a row and at both ends, and the last `\n`.
pub fn arrange_lines(text: &str, out: &mut String) {
    out.clear();
    out.reserve(text.len());
    let mut blank_lines = 0;
    for (_, line) in Lines::of(text) {
        let line = trim_end(line);
        if line.is_empty() {
            blank_lines += 1;
            continue;
        }
        if !out.is_empty() {
            out.push_str(&"\n\n\n"[..=blank_lines.min(MAX_BLANK_LINES)]);
        }
        out.push_str(line);
        blank_lines = 0;
    }
}

fn trim_end(line: &str) -> &str {
    match line.as_bytes().last() {
        Some(&byte) if byte >= 0x80 || ASCII[byte as usize] & BLANK != 0 => line.trim_end_matches(is_blank),
        _ => line,
    }
}

fn is_blank(character: char) -> bool {
    characters::flags(character) & BLANK != 0
}

/// Whether `collapse_blanks` would change anything.
pub fn has_runs_of_blanks(text: &str) -> bool {
    Runs::of(text).next().is_some()
}

/// Turns every run of blanks after the indentation of its line into one space.
pub fn collapse_blanks(text: &str, out: &mut String) {
    out.clear();
    out.reserve(text.len());
    let mut copied = 0;
    for (start, end) in Runs::of(text) {
        out.push_str(&text[copied..start]);
        out.push(' ');
        copied = end;
    }
    out.push_str(&text[copied..]);
}

/// The runs of blanks that are neither indentation nor a single space.
struct Runs<'a> {
    bytes: &'a [u8],
    characters: &'static Characters,
    at: usize,
    in_indentation: bool,
}

impl Runs<'_> {
    fn of(text: &str) -> Runs<'_> {
        Runs { bytes: text.as_bytes(), characters: Characters::get(), at: 0, in_indentation: true }
    }
}

impl Iterator for Runs<'_> {
    type Item = (usize, usize);

    fn next(&mut self) -> Option<(usize, usize)> {
        while self.at < self.bytes.len() {
            let start = self.at;
            let (mut flags, mut width) = self.characters.flags(self.bytes, start);
            if flags & BLANK == 0 {
                self.in_indentation = self.bytes[start] == b'\n';
                self.at += width;
                continue;
            }
            while flags & BLANK != 0 {
                self.at += width;
                if self.at == self.bytes.len() {
                    break;
                }
                (flags, width) = self.characters.flags(self.bytes, self.at);
            }
            if !self.in_indentation && &self.bytes[start..self.at] != b" " {
                return Some((start, self.at));
            }
        }
        None
    }
}
