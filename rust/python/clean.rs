//! Cleaning one text the way `prepare` cleans every document, and the table of drop rules.

use super::{guarded, raise};
use crate::clean::{Cleaner, Dropped, Rule, Settings, Verdict};
use crate::error::Error;
use pyo3::prelude::*;

/// (name, lines, bytes) of each line rule that dropped something.
type Lines = Vec<(&'static str, u64, u64)>;

/// Every drop rule, in the order in which they are checked, document rules first: its name, `document` or `line`, the
/// setting that controls it (empty if none), and what it means.
#[pyfunction]
pub fn drop_rules() -> PyResult<Vec<(&'static str, &'static str, &'static str, &'static str)>> {
    guarded(|| {
        let facts = Rule::all().map(Rule::facts);
        Ok(facts.map(|rule| (rule.name, rule.unit, rule.setting, rule.meaning)).collect())
    })
}

/// The cleaned text or the rule that drops it, and what the line rules dropped. The settings are JSON, as in a plan.
#[pyfunction]
pub fn clean_text(
    py: Python<'_>,
    text: &str,
    settings: &str,
) -> PyResult<(Option<String>, Option<&'static str>, Lines)> {
    guarded(|| {
        let settings: Settings = serde_json::from_str(settings).map_err(|error| {
            raise(py, Error::Invalid(format!("cannot read the cleaning settings ({error})")))
        })?;
        let mut dropped = Dropped::default();
        let (kept, rule) = py.detach(|| match Cleaner::new(settings).clean(text, &mut dropped) {
            Verdict::Keep(text) => (Some(text.to_owned()), None),
            Verdict::Drop { rule, .. } => (None, Some(rule.facts().name)),
        });
        let lines = Rule::LINES.iter().filter(|&&rule| dropped.count(rule) > 0);
        let lines =
            lines.map(|&rule| (rule.facts().name, dropped.count(rule), dropped.bytes(rule))).collect();
        Ok((kept, rule, lines))
    })
}
