//! Special tokens in text: excluded from training, recognized in encoding. Leftmost, then longest.

use crate::error::{Error, Result};
use crate::split::{Pattern, floor};
use aho_corasick::{AhoCorasick, MatchKind};

/// Ordinary text, or a special token by its index.
#[derive(Clone, Copy)]
pub enum Part<'a> {
    Text(&'a str),
    Special(usize),
}

#[derive(Default)]
pub struct Specials {
    automaton: Option<AhoCorasick>,
    tokens: Vec<String>,
    longest: usize,
}

impl Specials {
    pub fn new(tokens: &[String]) -> Result<Self> {
        if tokens.iter().any(String::is_empty) {
            return Err(Error::Invalid("a special token cannot be empty: remove it".into()));
        }
        let automaton =
            if tokens.is_empty() {
                None
            } else {
                let built = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(tokens);
                Some(built.map_err(|error| {
                    Error::Invalid(format!("cannot search for the special tokens: {error}"))
                })?)
            };
        Ok(Specials {
            automaton,
            longest: tokens.iter().map(String::len).max().unwrap_or(0),
            tokens: tokens.to_vec(),
        })
    }

    pub fn is_empty(&self) -> bool {
        self.automaton.is_none()
    }

    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Whether no token occurs in `text`.
    pub fn is_absent(&self, text: &str) -> bool {
        self.automaton.as_ref().is_none_or(|automaton| !automaton.is_match(text))
    }

    /// Whether `cut` is inside an occurrence of any token.
    pub fn spans(&self, text: &str, cut: usize) -> bool {
        self.tokens.iter().any(|token| {
            let from = (cut + 1).saturating_sub(token.len());
            (from..cut).any(|start| text.as_bytes()[start..].starts_with(token.as_bytes()))
        })
    }

    /// The parts of `text`, in order: its special tokens and the text between them.
    #[inline]
    pub fn parts<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Part<'a>> {
        let mut found = self.automaton.iter().flat_map(move |automaton| automaton.find_iter(text)).peekable();
        let mut start = 0;
        std::iter::from_fn(move || {
            let stop = match found.peek() {
                Some(next) if next.start() == start => {
                    start = next.end();
                    return found.next().map(|next| Part::Special(next.pattern().as_usize()));
                }
                Some(next) => next.start(),
                None => text.len(),
            };
            let part = &text[start..stop];
            start = stop;
            (!part.is_empty()).then_some(Part::Text(part))
        })
    }

    /// `Pattern::stable_prefix` with special tokens: no cut may be inside one, and a new piece begins after each.
    pub fn stable_prefix(&self, pattern: &Pattern, text: &str, cap: usize) -> usize {
        let Some(automaton) = &self.automaton else {
            return pattern.stable_prefix(text, cap);
        };
        // A token that starts before `certain` is complete, so all tokens up to there are known.
        let certain = floor(text, text.len().saturating_sub(self.longest - 1));
        let last = automaton.find_iter(text).take_while(|found| found.start() < certain).last();
        let start = last.map_or(0, |found| found.end());
        start + text.get(start..certain).map_or(0, |tail| pattern.stable_prefix(tail, cap))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces(specials: &Specials, text: &str) -> Vec<String> {
        let mut all = Vec::new();
        for part in specials.parts(text) {
            match part {
                Part::Text(part) => {
                    Pattern::Gpt2.split(part, 8, |start, end| all.push(part[start..end].to_owned()));
                }
                Part::Special(n) => all.push(format!("special {n}")),
            }
        }
        all
    }

    proptest! {
        #[test]
        fn a_stable_prefix_keeps_its_pieces(text in "(ab|abc|<e>| |x|é|\n|<|e){0,60}", more in "(c|<e>|e>|>| x|ab){0,5}") {
            let specials = Specials::new(&["ab".into(), "abc".into(), "<e>".into(), "x x".into()]).unwrap();
            let cut = specials.stable_prefix(&Pattern::Gpt2, &text, 8);
            let whole = text.clone() + &more;
            let mut apart = pieces(&specials, &whole[..cut]);
            apart.extend(pieces(&specials, &whole[cut..]));
            prop_assert_eq!(apart, pieces(&specials, &whole));
        }
    }
}
