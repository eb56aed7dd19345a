//! Why something is left out: all rules, what steers them, and what they say of a text.
//!
//! **Line rules**, for each line (what stands between two `\n`) that is not blank, in the order of [`Rule::LINES`]:
//! fewer characters than `min_line_chars`; more than `max_line_chars`; a share of symbols above `max_line_symbols`. A
//! line that a rule drops goes with its `\n`.
//!
//! **Document rules**, in the order of [`Rule::DOCUMENTS`], on what is left: nothing but white space; fewer characters
//! than `min_chars`; more than `max_chars`; a share of symbols above `max_symbols`; of the characters in lines that are
//! not blank, a share above `max_repeated` in lines equal to an earlier one (only if there are at least four such lines,
//! and by characters: a lone `}` on every tenth line does not judge code); a share of U+FFFD above `max_invalid`.
//!
//! A character is a code point. White space is the property White_Space; a blank line has nothing else. A symbol is a
//! character that is not a letter (L), a mark (M), a number (N) or white space. A share is above its limit if
//! `count > limit * total` in f64. A limit of 0 characters is none, for `max_chars` and `max_line_chars`.
//!
//! A new rule is a row of the table, its limit in [`Settings`], and an arm of `Rule::drops`; a rule of lines is also
//! named in [`drop_lines`], which looks at no line without need. Python takes the table from here: the ledger, what is
//! shown of it and the documentation follow from it.

use super::lines::Lines;
use super::repeats::Repeats;
use super::survey::Survey;
use serde::{Deserialize, Serialize};

macro_rules! drop_rules {
    ($($group:ident $unit:literal: $($rule:ident $name:literal $setting:literal $meaning:literal,)*;)*) => {
        /// The reasons to drop a document or a line.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Rule {
            $($($rule,)*)*
        }

        impl Rule {
            $(pub const $group: &[Rule] = &[$(Rule::$rule,)*];)*
            const FACTS: &[Facts] =
                &[$($(Facts { name: $name, unit: $unit, setting: $setting, meaning: $meaning },)*)*];
        }
    };
}

// Of either kind in the order in which they are asked. The names stand in manifests: none is ever changed.
drop_rules! {
    DOCUMENTS "document":
        Empty         "empty"           ""             "nothing but white space was left",
        TooShort      "too_short"       "min_chars"    "fewer characters than min_chars",
        TooLong       "too_long"        "max_chars"    "more characters than max_chars",
        Symbols       "symbols"         "max_symbols"  "too large a share of symbols (max_symbols)",
        RepeatedLines "repeated_lines"  "max_repeated" "too large a share of repeated lines (max_repeated)",
        BadEncoding   "bad_encoding"    "max_invalid"  "too many characters that could not be decoded (max_invalid)",
        Duplicate     "duplicate"       "dedup"        "an earlier document has the same text",
        TooFewTokens  "too_few_tokens"  "min_tokens"   "fewer tokens than min_tokens",
        TooManyTokens "too_many_tokens" "max_tokens"   "more tokens than max_tokens",
    ;
    LINES "line":
        LineTooShort  "line_too_short"  "min_line_chars"   "fewer characters than min_line_chars",
        LineTooLong   "line_too_long"   "max_line_chars"   "more characters than max_line_chars",
        LineSymbols   "line_symbols"    "max_line_symbols" "too large a share of symbols (max_line_symbols)",
        DuplicateLine "duplicate_line"  "dedup"            "an earlier line has the same text",
    ;
}

/// What people read of a rule.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    pub name: &'static str,
    pub unit: &'static str,
    /// The setting that steers it; empty if none does.
    pub setting: &'static str,
    pub meaning: &'static str,
}

/// How text is made uniform, and the limits of the rules. The defaults are Python's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub normalise: bool,
    pub collapse_blanks: bool,
    pub filter: bool,
    pub min_chars: u64,
    pub max_chars: u64,
    pub max_symbols: f64,
    pub max_repeated: f64,
    pub max_invalid: f64,
    pub min_line_chars: u64,
    pub max_line_chars: u64,
    pub max_line_symbols: f64,
}

impl Rule {
    pub fn all() -> impl Iterator<Item = Rule> {
        [Rule::DOCUMENTS, Rule::LINES].into_iter().flatten().copied()
    }

    pub fn facts(self) -> Facts {
        Rule::FACTS[self as usize]
    }

    /// Whether it drops a document, or a line that is not blank, which the rules before it keep.
    fn drops(self, text: &str, survey: &Survey, settings: &Settings, repeats: &mut Repeats) -> bool {
        let characters = survey.characters;
        match self {
            Rule::Empty => survey.empty,
            _ if !settings.filter => false,
            Rule::TooShort => characters < settings.min_chars,
            Rule::TooLong => settings.max_chars > 0 && characters > settings.max_chars,
            Rule::Symbols => is_above(survey.symbols, settings.max_symbols, characters),
            // At most everything is repeated.
            Rule::RepeatedLines => {
                settings.max_repeated < 1.0 && repeats.are_above(settings.max_repeated, text, survey)
            }
            Rule::BadEncoding => is_above(survey.invalid, settings.max_invalid, characters),
            Rule::LineTooShort => characters < settings.min_line_chars,
            Rule::LineTooLong => settings.max_line_chars > 0 && characters > settings.max_line_chars,
            Rule::LineSymbols => is_above(survey.symbols, settings.max_line_symbols, characters),
            // Asked later, of all documents together, or of their tokens.
            Rule::Duplicate | Rule::DuplicateLine | Rule::TooFewTokens | Rule::TooManyTokens => false,
        }
    }
}

/// What each rule took: documents or lines, and their bytes; a line's include its `\n`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    counts: [u64; Rule::FACTS.len()],
    bytes: [u64; Rule::FACTS.len()],
}

impl Taken {
    pub fn add(&mut self, rule: Rule, count: u64, bytes: usize) {
        self.counts[rule as usize] += count;
        self.bytes[rule as usize] += bytes as u64;
    }

    pub fn count(&self, rule: Rule) -> u64 {
        self.counts[rule as usize]
    }

    pub fn bytes(&self, rule: Rule) -> u64 {
        self.bytes[rule as usize]
    }
}

pub fn is_above(count: u64, limit: f64, total: u64) -> bool {
    count as f64 > limit * total as f64
}

/// The first of the rules that drops the text.
pub fn judge(
    rules: &[Rule],
    text: &str,
    survey: &Survey,
    settings: &Settings,
    repeats: &mut Repeats,
) -> Option<Rule> {
    rules.iter().copied().find(|rule| rule.drops(text, survey, settings, repeats))
}

/// Writes the text without the lines that a line rule drops; says whether there are any, and writes nothing if not.
pub fn drop_lines(
    text: &str,
    settings: &Settings,
    repeats: &mut Repeats,
    taken: &mut Taken,
    out: &mut String,
) -> bool {
    // No line is longer than the text: with the settings as they come, most documents are not looked at.
    let any_too_long = settings.max_line_chars > 0 && text.len() as u64 > settings.max_line_chars;
    let any_too_short = settings.min_line_chars > 0;
    let any_symbols = settings.max_line_symbols < 1.0;
    if !(any_too_long || any_too_short || any_symbols) {
        return false;
    }
    let mut changed = false;
    let mut copied = 0;
    for (at, line) in Lines::of(text) {
        let may_be_too_long = any_too_long && line.len() as u64 > settings.max_line_chars;
        if !(may_be_too_long || any_too_short || any_symbols) {
            continue;
        }
        let survey = Survey::of(line, false);
        if survey.empty {
            continue;
        }
        if let Some(rule) = judge(Rule::LINES, line, &survey, settings, repeats) {
            let end = text.len().min(at + line.len() + 1);
            if !changed {
                out.clear();
                out.reserve(text.len());
                changed = true;
            }
            out.push_str(&text[copied..at]);
            copied = end;
            taken.add(rule, 1, end - at);
        }
    }
    if changed {
        out.push_str(&text[copied..]);
    }
    changed
}
