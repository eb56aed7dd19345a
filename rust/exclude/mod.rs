//! Documents that share an n-gram of words with an evaluation set (docs/design/exclude.md).
//!
//! ```text
//! build    the evaluation set -> one sorted file of its n-grams' hashes
//! screen   task, some rows of that file -> the documents that have one of these hashes     only if not all rows fit
//! scan     task, the last rows          -> all documents that have one
//! write    task -> Hits: is this document one of them?
//! ```
//!
//! Which documents have an n-gram of the set, and which one comes first in each, depends on neither the rows of a pass
//! nor their order.

mod build;
mod hits;
mod set;

pub use build::{Built, Reading, build};
pub use hits::{Hit, Hits, Screen};
pub use set::{LEAST_MEMORY, ROW_MEMORY, Set, SetFile};
