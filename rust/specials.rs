//! Special tokens in text: cut out before counting, found while encoding. Leftmost, then longest.

use crate::error::{Error, Result};
use crate::split::Pattern;
use aho_corasick::{AhoCorasick, MatchKind};

pub struct Specials {
    automaton: Option<AhoCorasick>,
    tokens: Vec<String>,
    longest: usize,
}

impl Specials {
    pub fn new(tokens: &[String]) -> Result<Self> {
        if tokens.iter().any(String::is_empty) {
            return Err(Error::Invalid("a special token cannot be empty: leave it out".into()));
        }
        let automaton = if tokens.is_empty() {
            None
        } else {
            let built = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(tokens);
            Some(built.map_err(|error| {
                Error::Invalid(format!("the special tokens cannot be searched for: {error}"))
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

    /// Calls `text` for the stretches between special tokens and `special` with each one's index, in order.
    #[inline]
    pub fn cut<'a, C>(
        &self,
        all: &'a str,
        context: &mut C,
        text: impl Fn(&mut C, &'a str),
        special: impl Fn(&mut C, usize),
    ) {
        let mut start = 0;
        for found in self.automaton.iter().flat_map(|automaton| automaton.find_iter(all)) {
            if found.start() > start {
                text(context, &all[start..found.start()]);
            }
            special(context, found.pattern().as_usize());
            start = found.end();
        }
        if start < all.len() {
            text(context, &all[start..]);
        }
    }

    /// `Pattern::stable_prefix` where special tokens are cut out: no cut may go through one, and
    /// pieces begin anew behind each.
    pub fn stable_prefix(&self, pattern: &Pattern, text: &str, cap: usize) -> usize {
        let Some(automaton) = &self.automaton else {
            return pattern.stable_prefix(text, cap);
        };
        // A token that starts before `certain` is here in full, so what starts there is known.
        let mut certain = text.len().saturating_sub(self.longest - 1);
        while !text.is_char_boundary(certain) {
            certain -= 1;
        }
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
        specials.cut(
            text,
            &mut all,
            |all: &mut Vec<String>, part| {
                Pattern::Gpt2.split(part, 8, |start, end| all.push(part[start..end].to_owned()));
            },
            |all, n| all.push(format!("special {n}")),
        );
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
