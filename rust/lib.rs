//! The native core of ramlet: loops over bytes and tokens, nothing else.
//!
//! Policy, paths and messages live in Python; `python.rs` is the only file that knows it.
pub mod bpe;
pub mod error;
pub mod pairs;
pub mod source;
pub mod table;
pub mod varint;
#[cfg(feature = "python")]
mod python;
pub mod alphabet;
pub mod crew;
pub mod merge;
pub mod split;
pub mod unicode;
pub mod spill;
pub mod count;
pub mod rss;
pub mod specials;
pub mod workdir;
pub mod train;
pub mod encode;
