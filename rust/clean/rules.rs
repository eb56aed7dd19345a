//! The rules that drop documents and lines, and their settings.
//!
//! **Line rules**, for each line (the text between two `\n`) that is not blank, in the order of [`Rule::LINES`]:
//! fewer characters than `min_line_chars`; more than `max_line_chars`; a share of symbols above `max_line_symbols`. A
//! line is dropped together with its `\n`.
//!
//! **Document rules**, in the order of [`Rule::DOCUMENTS`], on what is left: only white space; fewer characters than
//! `min_chars`; more than `max_chars`; a share of symbols above `max_symbols`; a share of repeated text above
//! `max_repeated`, counted as characters in lines equal to an earlier one among the characters in lines that are not
//! blank (only with at least four such lines; characters, so that code with a lone `}` on every tenth line is kept); a
//! share of U+FFFD above `max_invalid`.
//!
//! A character is a code point. White space is the property White_Space; a blank line has nothing else. A symbol is a
//! character that is not a letter (L), a mark (M), a number (N) or white space. A share is above its limit if
//! `count > limit * total` in f64. For `max_chars` and `max_line_chars`, 0 means no limit.
//!
//! A new rule is a row of the table, its limit in [`Settings`], and an arm of `Rule::drops`, which counts what the rule
//! needs in the text, if its limit is on: [`Survey`] has only what the one pass over every text finds. A line rule also
//! has to be added to [`drop_lines`], which skips lines that no rule can drop. Python reads the table from here: the
//! ledger, its display and the documentation follow from it.

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

// Each kind in the order in which its rules are checked. The names are written to manifests: never change one.
drop_rules! {
    DOCUMENTS "document":
        Empty         "empty"           ""             "only white space was left",
        TooShort      "too_short"       "min_chars"    "fewer characters than min_chars",
        TooLong       "too_long"        "max_chars"    "more characters than max_chars",
        Symbols       "symbols"         "max_symbols"  "share of symbols above max_symbols",
        RepeatedLines "repeated_lines"  "max_repeated" "share of text in repeated lines above max_repeated",
        BadEncoding   "bad_encoding"    "max_invalid"  "share of undecodable characters (U+FFFD) above max_invalid",
        Contaminated  "contaminated"    "exclude"      "shares a passage with the evaluation set in exclude",
        Duplicate     "duplicate"       "dedup"        "an earlier document has the same text",
        TooFewTokens  "too_few_tokens"  "min_tokens"   "fewer tokens than min_tokens",
        TooManyTokens "too_many_tokens" "max_tokens"   "more tokens than max_tokens",
        NearDuplicate "near_duplicate"  "near"         "similar to an earlier document that is kept, by near or more",
    ;
    LINES "line":
        LineTooShort  "line_too_short"  "min_line_chars"   "fewer characters than min_line_chars",
        LineTooLong   "line_too_long"   "max_line_chars"   "more characters than max_line_chars",
        LineSymbols   "line_symbols"    "max_line_symbols" "share of symbols above max_line_symbols",
        DuplicateLine "duplicate_line"  "dedup"            "an earlier line has the same text",
    ;
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    pub name: &'static str,
    pub unit: &'static str,
    /// The setting that controls it; empty if none does.
    pub setting: &'static str,
    pub meaning: &'static str,
}

/// What to normalize, and the limits of the rules. The defaults are in Python.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    #[serde(rename = "normalise")]
    pub normalize: bool,
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

    /// Whether it drops a document, or a line that is not blank, that the rules before it keep.
    fn drops(self, text: &str, survey: &Survey, settings: &Settings, repeats: &mut Repeats) -> bool {
        let characters = survey.characters;
        match self {
            Rule::Empty => survey.empty,
            _ if !settings.filter => false,
            Rule::TooShort => characters < settings.min_chars,
            Rule::TooLong => settings.max_chars > 0 && characters > settings.max_chars,
            Rule::Symbols => is_above(survey.symbols, settings.max_symbols, characters),
            // At a limit of 1 nothing can be above it: skip the search.
            Rule::RepeatedLines => {
                settings.max_repeated < 1.0 && repeats.are_above(settings.max_repeated, text, survey)
            }
            Rule::BadEncoding => is_above(survey.invalid, settings.max_invalid, characters),
            Rule::LineTooShort => characters < settings.min_line_chars,
            Rule::LineTooLong => settings.max_line_chars > 0 && characters > settings.max_line_chars,
            Rule::LineSymbols => is_above(survey.symbols, settings.max_line_symbols, characters),
            // Checked later, over all documents together, or on their tokens.
            Rule::Contaminated | Rule::Duplicate | Rule::DuplicateLine => false,
            Rule::TooFewTokens | Rule::TooManyTokens | Rule::NearDuplicate => false,
        }
    }
}

/// What each rule dropped: the number of documents or lines, and their bytes; a line's include its `\n`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    counts: [u64; Rule::FACTS.len()],
    bytes: [u64; Rule::FACTS.len()],
}

impl Dropped {
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

/// Writes the text without the lines that a rule drops; returns false, and writes nothing, if there are none.
pub fn drop_lines(
    text: &str,
    settings: &Settings,
    repeats: &mut Repeats,
    dropped: &mut Dropped,
    out: &mut String,
) -> bool {
    // No line is longer than the text: with the default settings most documents are not searched at all.
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
            dropped.add(rule, 1, end - at);
        }
    }
    if changed {
        out.push_str(&text[copied..]);
    }
    changed
}
