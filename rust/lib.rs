//! The native core of ramlet: loops over bytes and tokens, nothing else.
//!
//! Policy, paths and messages live in Python; only the folder `python/` depends on it.

pub mod adamw8bit;
pub mod alphabet;
pub mod atomic;
pub mod attention;
pub mod bpe;
pub mod clean;
pub mod count;
pub mod count_parts;
pub mod crew;
pub mod dedup;
pub mod documents;
pub mod encode;
pub mod error;
pub mod exclude;
pub mod gpt;
pub mod kernels;
pub mod loading;
pub mod merge;
pub mod near;
pub mod own_files;
pub mod pages;
pub mod pairs;
pub mod prepare;
pub mod products;
#[cfg(feature = "python")]
mod python;
pub mod repetition;
pub mod rss;
pub mod scatter;
pub mod source;
pub mod specials;
pub mod spill;
pub mod split;
pub mod table;
pub mod tasks;
pub mod train;
pub mod unicode;
pub mod varint;
pub mod words;
pub mod workdir;
