//! The shingles of documents that others are compared with, in a cache of bounded size.

use super::texts::Texts;
use crate::error::Result;
use crate::near::cache::CacheFile;
use crate::near::ordinal::{Ordinal, Which};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Documents of which there are many copies are needed again and again.
pub struct Sets {
    pub caches: Vec<CacheFile>,
    held: Mutex<Held>,
    /// Bytes of each of the two generations.
    generation: usize,
}

#[derive(Default)]
struct Held {
    young: HashMap<Ordinal, Arc<Vec<u64>>>,
    old: HashMap<Ordinal, Arc<Vec<u64>>>,
    young_bytes: usize,
}

/// What an entry takes in addition to its hashes.
const ENTRY: usize = 128;

impl Sets {
    pub fn new(caches: Vec<CacheFile>, memory: usize) -> Sets {
        Sets { caches, held: Mutex::default(), generation: memory / 2 }
    }

    pub fn get(&self, ordinal: Ordinal, texts: &mut Texts<'_>) -> Result<Arc<Vec<u64>>> {
        if let Some(set) = self.find(ordinal) {
            return Ok(set);
        }
        let set = Arc::new(match ordinal.which() {
            Which::Own { task, index } => texts.set(task, index)?,
            Which::Cached { file, index } => self.caches[file as usize].set(index)?,
        });
        self.held.lock().unwrap().add(ordinal, &set, self.generation);
        Ok(set)
    }

    fn find(&self, ordinal: Ordinal) -> Option<Arc<Vec<u64>>> {
        let mut held = self.held.lock().unwrap();
        if let Some(set) = held.young.get(&ordinal) {
            return Some(set.clone());
        }
        let set = held.old.get(&ordinal).cloned()?;
        held.add(ordinal, &set, self.generation);
        Some(set)
    }
}

impl Held {
    /// A full generation becomes the old one; what is not used meanwhile goes with the next.
    fn add(&mut self, ordinal: Ordinal, set: &Arc<Vec<u64>>, generation: usize) {
        let bytes = set.len() * size_of::<u64>() + ENTRY;
        if bytes > generation {
            return;
        }
        if self.young_bytes + bytes > generation {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        if self.young.insert(ordinal, set.clone()).is_none() {
            self.young_bytes += bytes;
        }
    }
}
