//! Token ids on disk -> batches for training: the order of the examples, and reading their ids into the arrays.
//!
//! ```text
//!  sample number ─► Schedule: dataset, example, offset ─► Windows: pread, widen, shift ─► rows of two arrays
//! ```
//!
//! The order is computed, never stored: shuffling takes no memory whatever the size of an epoch, and any sample can be
//! read without those before it. Files are read, not mapped, with a bounded number of them open.

mod open_files;
mod row;
mod schedule;
mod shuffle;
mod windows;

pub use row::Rows;
pub use schedule::{MIX_BLOCK, Schedule, Turns, Window};
pub use shuffle::{Shuffle, key};
pub use windows::{IdType, Tokens, TokensSpec, Windows};
