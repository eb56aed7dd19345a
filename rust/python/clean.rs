//! Cleaning one text, as `prepare` cleans every document, and the rules by which it drops.

use super::{guarded, raise};
use crate::clean::{Cleaner, Rule, Settings, Taken, Verdict};
use crate::error::Error;
use pyo3::prelude::*;

/// A number for each line rule that took something: its name, the lines and the bytes.
type Lines = Vec<(&'static str, u64, u64)>;

/// Every reason to drop something, in the order in which they are asked, documents' first: its name, `document` or
/// `line`, the setting that steers it (empty if none does), and what it means.
#[pyfunction]
pub fn drop_rules() -> PyResult<Vec<(&'static str, &'static str, &'static str, &'static str)>> {
    guarded(|| {
        let facts = Rule::all().map(Rule::facts);
        Ok(facts.map(|rule| (rule.name, rule.unit, rule.setting, rule.meaning)).collect())
    })
}

/// The cleaned text or the rule that drops it, and what the line rules took. The settings are JSON, as a plan has them.
#[pyfunction]
pub fn clean_text(
    py: Python<'_>,
    text: &str,
    settings: &str,
) -> PyResult<(Option<String>, Option<&'static str>, Lines)> {
    guarded(|| {
        let settings: Settings = serde_json::from_str(settings).map_err(|error| {
            raise(py, Error::Invalid(format!("the settings of cleaning cannot be read ({error})")))
        })?;
        let mut taken = Taken::default();
        let (kept, rule) = py.detach(|| match Cleaner::new(settings).clean(text, &mut taken) {
            Verdict::Keep(text) => (Some(text.to_owned()), None),
            Verdict::Drop { rule, .. } => (None, Some(rule.facts().name)),
        });
        let lines = Rule::LINES.iter().filter(|&&rule| taken.count(rule) > 0);
        let lines = lines.map(|&rule| (rule.facts().name, taken.count(rule), taken.bytes(rule))).collect();
        Ok((kept, rule, lines))
    })
}
