//! The vocabulary learned so far: the tokens as byte strings, and the merges that made them.

use crate::alphabet::BYTES;
use std::cmp::Ordering;
use std::collections::HashMap;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TieBreak {
    /// Among equally frequent pairs, the smallest (id, id) is merged first, as in HF tokenizers.
    SmallestIds,
    /// The greatest (bytes, bytes) is merged first, as in Stanford's CS336.
    GreatestBytes,
}

pub struct Vocabulary {
    tokens: Vec<Box<[u8]>>,
    ids: HashMap<Box<[u8]>, u32>,
    pub merges: Vec<(u32, u32, u32)>,
    long_bytes: usize,
}

/// A longer token takes more memory than `TOKEN_BYTES` (train.rs) accounts for.
const SHORT: usize = 24;

impl Vocabulary {
    pub fn of_bytes() -> Self {
        let tokens: Vec<Box<[u8]>> = BYTES.iter().map(|&byte| Box::from([byte])).collect();
        let ids = (0..).zip(&tokens).map(|(id, token)| (token.clone(), id)).collect();
        Vocabulary { tokens, ids, merges: Vec::new(), long_bytes: 0 }
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The memory of long tokens beyond the usual estimate per token.
    pub fn long_bytes(&self) -> usize {
        self.long_bytes
    }

    pub fn tokens(&self) -> &[Box<[u8]>] {
        &self.tokens
    }

    #[inline]
    pub fn merged_length(&self, left: u32, right: u32) -> usize {
        self.tokens[left as usize].len() + self.tokens[right as usize].len()
    }

    /// Adds the merge. Returns the token's id and whether it is new: sometimes another pair has made the same bytes
    /// before, and the id is that token's.
    pub fn merge(&mut self, left: u32, right: u32) -> (u32, bool) {
        let bytes: Box<[u8]> = [&*self.tokens[left as usize], &*self.tokens[right as usize]].concat().into();
        let next = self.tokens.len() as u32;
        let id = *self.ids.entry(bytes.clone()).or_insert(next);
        if id == next {
            self.long_bytes += 2 * bytes.len().saturating_sub(SHORT);
            self.tokens.push(bytes);
        }
        self.merges.push((left, right, id));
        (id, id == next)
    }

    /// Which of two equally frequent pairs is merged first: `Greater` means `a`.
    pub fn order(&self, tie_break: TieBreak, a: (u32, u32), b: (u32, u32)) -> Ordering {
        match tie_break {
            TieBreak::SmallestIds => b.cmp(&a),
            TieBreak::GreatestBytes => {
                let bytes = |id: u32| &self.tokens[id as usize];
                bytes(a.0).cmp(bytes(b.0)).then_with(|| bytes(a.1).cmp(bytes(b.1)))
            }
        }
    }
}
