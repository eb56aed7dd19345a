//! Near-duplicates, as Python calls them.

use super::guarded;
use crate::near::shingles::Shingler;
use pyo3::prelude::*;

/// The set of a text's shingles (docs/design/near.md): their hashes, ascending.
#[pyfunction]
pub fn shingles(text: &str) -> PyResult<Vec<u64>> {
    guarded(|| Ok(Shingler::default().set(text)))
}
