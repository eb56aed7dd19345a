//! Cleans one document at a time: normalizes its text, drops bad lines, and keeps it or drops it by a named rule.
//!
//! **Normalization**, in this order:
//! 1. `\r\n`, `\r`, U+0085, U+2028 and U+2029 become `\n`.
//! 2. Control characters (C0 except tab and `\n`, DEL, C1), U+FEFF and noncharacters are removed.
//! 3. NFC.
//! 4. Blanks (Zs and tab) at the end of a line are removed. With `collapse_blanks`, every other run of blanks that is
//!    not the indentation of its line becomes one space.
//! 5. More than two blank lines in a row become two; blank lines at the start and all white space at the end of the
//!    document are removed. The indentation of the first line stays.
//!
//! **Rules**: first the line rules, then the document rules on what is left; rules.rs has all of them. If a line is
//! dropped and the text is normalized, step 5 is repeated.
//!
//! Without `filter` the only rule is "empty"; without `normalize` the text stays as it is. Cleaning a cleaned text
//! changes nothing.
//!
//! One survey of the text finds which steps are needed, and a text that needs none is returned without a copy; most of
//! the time goes to the search for repeated lines. Each step that is needed copies the text once, into scratch memory
//! of at most a few times the document.

mod characters;
mod layout;
mod lines;
mod normalize;
mod repeats;
mod rules;
mod survey;
#[cfg(test)]
mod tests;

use repeats::Repeats;
pub use rules::{Dropped, Facts, Rule, Settings};
use survey::Survey;

/// Scratch memory that a cleaner keeps from one document to the next, for each of its buffers.
const KEPT_BYTES: usize = 4 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    Keep(&'a str),
    /// `text` is what the rule was applied to.
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
}

impl Cleaner {
    pub fn new(settings: Settings) -> Self {
        Cleaner { settings, current: String::new(), next: String::new(), repeats: Repeats::default() }
    }

    /// Cleans one document and applies the rules; what the line rules drop is added to `dropped`.
    pub fn clean<'a>(&'a mut self, text: &'a str, dropped: &mut Dropped) -> Verdict<'a> {
        self.free_large_buffers();
        let mut survey = Survey::of(text, self.settings.normalize);
        let mut changed = self.settings.normalize && self.normalize(text, &survey);
        if changed {
            survey = Survey::of(&self.current, false);
        }
        if self.settings.filter {
            let left = if changed { &self.current } else { text };
            if rules::drop_lines(left, &self.settings, &mut self.repeats, dropped, &mut self.next) {
                std::mem::swap(&mut self.current, &mut self.next);
                changed = true;
                if self.settings.normalize {
                    self.step(text, &mut changed, layout::arrange_lines);
                }
                survey = Survey::of(&self.current, false);
            }
        }
        let text = if changed { &self.current } else { text };
        match rules::judge(Rule::DOCUMENTS, text, &survey, &self.settings, &mut self.repeats) {
            None => Verdict::Keep(text),
            Some(rule) => Verdict::Drop { rule, text },
        }
    }

    /// Writes the normalized text to `current`, or returns false if `text` is normalized already.
    fn normalize(&mut self, text: &str, survey: &Survey) -> bool {
        let (mut changed, mut removed) = (false, false);
        if survey.replaceable {
            removed = normalize::replace_characters(text, &mut self.current);
            changed = true;
        }
        if survey.decomposed || removed && survey.unsettled {
            self.step(text, &mut changed, normalize::compose);
        }
        // Removing characters may leave blanks at the end of a line; composing does not.
        if survey.replaceable || survey.untidy {
            self.step(text, &mut changed, layout::arrange_lines);
        }
        if self.settings.collapse_blanks && (changed || layout::has_runs_of_blanks(text)) {
            self.step(text, &mut changed, layout::collapse_blanks);
        }
        changed
    }

    /// Applies a step to the result of the one before it, or to `text` if nothing has changed yet.
    fn step(&mut self, text: &str, changed: &mut bool, work: fn(&str, &mut String)) {
        if *changed {
            work(&self.current, &mut self.next);
            std::mem::swap(&mut self.current, &mut self.next);
        } else {
            work(text, &mut self.current);
            *changed = true;
        }
    }

    /// Frees the buffers of an unusually long document, instead of keeping them for all the others.
    fn free_large_buffers(&mut self) {
        for buffer in [&mut self.current, &mut self.next] {
            if buffer.capacity() > KEPT_BYTES {
                *buffer = String::new();
            }
        }
        self.repeats.free_above(KEPT_BYTES);
    }
}
