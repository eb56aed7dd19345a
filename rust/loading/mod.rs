//! Ids on disk -> batches for training: which example comes when, and its ids read into place.
//!
//! ```text
//!  sample number ─► Schedule: dataset, example ─► Windows: pread, widen, shift ─► rows of two arrays
//! ```
//!
//! The order is computed, never stored: an epoch of any size is shuffled in no memory, and any sample can be asked for
//! without those before it. Files are read, not mapped, through a bounded number of open ones.

mod open_files;
mod row;
mod schedule;
mod shuffle;
mod windows;

pub use row::{IGNORED, RowRules, Rows};
pub use schedule::{MIX_BLOCK, Schedule};
pub use shuffle::{Shuffle, key};
pub use windows::{IdType, Tokens, TokensSpec, Windows};
