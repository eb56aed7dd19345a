//! Cleaning one text, as `prepare` cleans every document.

use super::{guarded, raise};
use crate::clean::{Cleaner, DOCUMENT_RULES, Dropped, LINE_RULES, Settings, Verdict};
use crate::error::Error;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// All settings of `ramlet.clean.CleanSettings`, by their names.
pub fn settings_from_dict(given: &Bound<'_, PyDict>) -> PyResult<Settings> {
    fn get<'py, T: FromPyObjectOwned<'py, Error = PyErr>>(
        given: &Bound<'py, PyDict>,
        key: &str,
    ) -> PyResult<T> {
        let value = given.get_item(key)?;
        value.ok_or_else(|| raise(given.py(), Error::Invalid(format!("no setting {key:?}"))))?.extract()
    }
    Ok(Settings {
        normalise: get(given, "normalise")?,
        collapse_blanks: get(given, "collapse_blanks")?,
        filter: get(given, "filter")?,
        min_chars: get(given, "min_chars")?,
        max_chars: get(given, "max_chars")?,
        max_symbols: get(given, "max_symbols")?,
        max_repeated: get(given, "max_repeated")?,
        max_invalid: get(given, "max_invalid")?,
        min_line_chars: get(given, "min_line_chars")?,
        max_line_chars: get(given, "max_line_chars")?,
        max_line_symbols: get(given, "max_line_symbols")?,
    })
}

/// The cleaned text or the rule that drops it, and for each line rule how many lines and bytes it took.
#[pyfunction]
pub fn clean_text<'py>(
    py: Python<'py>,
    text: &str,
    settings: &Bound<'py, PyDict>,
) -> PyResult<(Option<String>, Option<&'static str>, Bound<'py, PyDict>)> {
    guarded(|| {
        let mut cleaner = Cleaner::new(settings_from_dict(settings)?);
        let mut dropped = Dropped::default();
        let (kept, rule) = py.detach(|| match cleaner.clean(text, &mut dropped) {
            Verdict::Keep(text) => (Some(text.to_owned()), None),
            Verdict::Drop { rule, .. } => (None, Some(DOCUMENT_RULES[rule])),
        });
        let lines = PyDict::new(py);
        for (rule, name) in LINE_RULES.iter().enumerate() {
            lines.set_item(name, vec![dropped.lines[rule], dropped.bytes[rule]])?;
        }
        Ok((kept, rule, lines))
    })
}
