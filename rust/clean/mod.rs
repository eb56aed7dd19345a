//! One document at a time: its text made uniform, its bad lines left out, and a verdict with a named reason.
//!
//! **Normalise**, in this order:
//! 1. `\r\n`, `\r`, U+0085, U+2028 and U+2029 become `\n`.
//! 2. Control characters (C0 but tab and `\n`, DEL, C1), U+FEFF and noncharacters are removed.
//! 3. NFC.
//! 4. Blanks (Zs and tab) at the end of a line are removed. With `collapse_blanks`, every other run of blanks that is
//!    not the indentation of its line becomes one space.
//! 5. More than two blank lines in a row become two; blank lines at the start and all white space at the end of the
//!    document are removed. The indentation of the first line stays.
//!
//! **Rules**: first those of lines, then those of documents, on what is left; rules.rs has all of them. If a line goes,
//! and only if the text is normalised, step 5 is done again.
//!
//! Without `filter` there are no rules but "empty"; without `normalise` the text stays as it is. Cleaning what was
//! cleaned changes nothing.
//!
//! The work: one survey of the text finds what needs doing, and text that needs nothing is handed back as it came; most of
//! the time goes to the search for repeated lines. What needs something is copied, once a step, into scratch memory of at
//! most a few times the document.

mod characters;
mod layout;
mod lines;
mod normalise;
mod repeats;
mod rules;
mod survey;
#[cfg(test)]
mod tests;

use repeats::Repeats;
pub use rules::{Facts, Rule, Settings, Taken};
use survey::Survey;

/// Scratch memory that a cleaner keeps from one document to the next, for each of its buffers.
const KEPT_BYTES: usize = 4 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    Keep(&'a str),
    /// `text` is what the rule judged.
    Drop {
        rule: Rule,
        text: &'a str,
    },
}

pub struct Cleaner {
    settings: Settings,
    /// The result of the last step that changed the text, and the buffer that the next one writes to.
    current: String,
    next: String,
    repeats: Repeats,
    characters: u64,
}

impl Cleaner {
    pub fn new(settings: Settings) -> Self {
        Cleaner {
            settings,
            current: String::new(),
            next: String::new(),
            repeats: Repeats::default(),
            characters: 0,
        }
    }

    /// Cleans and judges one document; what the line rules take is added to `taken`.
    pub fn clean<'a>(&'a mut self, text: &'a str, taken: &mut Taken) -> Verdict<'a> {
        self.give_back();
        let mut survey = Survey::of(text, self.settings.normalise);
        let mut changed = self.settings.normalise && self.normalise(text, &survey);
        if changed {
            survey = Survey::of(&self.current, false);
        }
        if self.settings.filter {
            let left = if changed { &self.current } else { text };
            if rules::drop_lines(left, &self.settings, &mut self.repeats, taken, &mut self.next) {
                std::mem::swap(&mut self.current, &mut self.next);
                changed = true;
                if self.settings.normalise {
                    self.step(layout::arrange_lines);
                }
                survey = Survey::of(&self.current, false);
            }
        }
        self.characters = survey.characters;
        let text = if changed { &self.current } else { text };
        match rules::judge(Rule::DOCUMENTS, text, &survey, &self.settings, &mut self.repeats) {
            None => Verdict::Keep(text),
            Some(rule) => Verdict::Drop { rule, text },
        }
    }

    /// The characters of the text that was judged last.
    pub fn characters(&self) -> u64 {
        self.characters
    }

    /// Leaves the normalised text in `current`, or says that `text` is normalised already.
    fn normalise(&mut self, text: &str, survey: &Survey) -> bool {
        let mut changed = survey.replaceable;
        let mut compose = survey.decomposed;
        if survey.replaceable {
            let joined = normalise::replace_characters(text, &mut self.current);
            compose |= joined && survey.unsettled;
        }
        if compose && changed {
            self.step(normalise::compose);
        } else if compose {
            normalise::compose(text, &mut self.current);
            changed = true;
        }
        // Removing characters may bring blanks to the end of a line; composing does not.
        let arrange = survey.replaceable || survey.untidy;
        if arrange && changed {
            self.step(layout::arrange_lines);
        } else if arrange {
            layout::arrange_lines(text, &mut self.current);
            changed = true;
        }
        if self.settings.collapse_blanks {
            if changed {
                self.step(layout::collapse_blanks);
            } else if layout::has_runs_of_blanks(text) {
                layout::collapse_blanks(text, &mut self.current);
                changed = true;
            }
        }
        changed
    }

    fn step(&mut self, work: impl FnOnce(&str, &mut String)) {
        work(&self.current, &mut self.next);
        std::mem::swap(&mut self.current, &mut self.next);
    }

    /// What an uncommonly long document took is not held through all the others.
    fn give_back(&mut self) {
        for buffer in [&mut self.current, &mut self.next] {
            if buffer.capacity() > KEPT_BYTES {
                *buffer = String::new();
            }
        }
        self.repeats.give_back(KEPT_BYTES);
    }
}
