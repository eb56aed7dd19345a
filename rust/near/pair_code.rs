//! Pairs as few bytes: most are of documents that are close to each other.
//!
//! For each pair three kinds of varints: the later document's index, less that of the pair before; then, if both are of
//! one task, the difference of their indices; else 0, the difference of their tasks and the earlier document's index, or
//! 0, 0, and the file and the number of a document of an earlier run.

use super::ordinal::{Ordinal, Which};
use crate::varint;

/// The most bytes of a pair.
const LONGEST: usize = 5 * 5;

/// Appends a pair; `before` is the later document's index in the pair before it, 0 at first.
pub fn put(out: &mut Vec<u8>, before: u32, task: u32, later: u32, earlier: Ordinal) {
    varint::put(out, u64::from(later - before));
    match earlier.which() {
        Which::Own { task: other, index } if other == task => varint::put(out, u64::from(later - index)),
        Which::Own { task: other, index } => {
            [0, u64::from(task - other), u64::from(index)]
                .into_iter()
                .for_each(|number| varint::put(out, number));
        }
        Which::Cached { file, index } => {
            [0, 0, u64::from(file), u64::from(index)].into_iter().for_each(|number| varint::put(out, number));
        }
    }
}

/// Reads the pairs of a cell that comes a block at a time.
pub struct PairReader {
    task: u32,
    later: u32,
    held: Vec<u8>,
}

impl PairReader {
    pub fn new(task: u32) -> PairReader {
        PairReader { task, later: 0, held: Vec::new() }
    }

    /// Calls `each` with the pairs that are complete. `None` if a number is not one that is written here.
    pub fn read<E>(
        &mut self,
        block: &[u8],
        mut each: impl FnMut(u32, Ordinal) -> Result<(), E>,
    ) -> Result<Option<()>, E> {
        self.held.extend_from_slice(block);
        let mut at = 0;
        while let Some(next) = self.next(&mut at) {
            let Some((later, earlier)) = next else { return Ok(None) };
            self.later = later;
            each(later, earlier)?;
        }
        self.held.drain(..at);
        Ok((self.held.len() < LONGEST).then_some(()))
    }

    /// Whether nothing is left over.
    pub fn is_done(&self) -> bool {
        self.held.is_empty()
    }

    /// The pair at `at`; `None` if it is not complete yet, `Some(None)` if there is no such pair.
    #[allow(clippy::option_option)]
    fn next(&self, at: &mut usize) -> Option<Option<(u32, Ordinal)>> {
        let mut here = *at;
        let mut number = || get(&self.held, &mut here);
        let later = number()?;
        let near = number()?;
        let later = u32::try_from(u64::from(self.later) + later).ok();
        let pair = if near > 0 {
            later.and_then(|later| {
                let index = u32::try_from(near).ok().and_then(|near| later.checked_sub(near))?;
                Some((later, Ordinal::own(self.task, index)))
            })
        } else {
            let (tasks, index) = (number()?, number()?);
            let (tasks, index) = (u32::try_from(tasks).ok(), u32::try_from(index).ok());
            match (later, tasks, index) {
                (Some(later), Some(0), Some(file)) => {
                    u32::try_from(number()?).ok().map(|index| (later, Ordinal::cached(file, index)))
                }
                (Some(later), Some(tasks), Some(index)) => {
                    self.task.checked_sub(tasks).map(|task| (later, Ordinal::own(task, index)))
                }
                _ => None,
            }
        };
        *at = here;
        Some(pair)
    }
}

/// The number at `*at`, if all of it is there.
fn get(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let length = 1 + bytes[*at..].iter().take(5).position(|byte| *byte < 0x80)?;
    let mut start = *at;
    *at += length;
    Some(varint::get(bytes, &mut start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pairs_come_back_from_blocks_of_any_size(
            pairs in prop::collection::vec((any::<u32>(), 0u32..3, any::<u32>(), any::<u32>()), 0..50),
            block in 1usize..40,
        ) {
            let task = 7;
            let mut wanted: Vec<(u32, Ordinal)> = pairs
                .into_iter()
                .map(|(later, kind, number, other)| {
                    let earlier = match kind {
                        0 if later > 0 => Ordinal::own(task, number % later),
                        1 => Ordinal::own(number % task, other),
                        _ => Ordinal::cached(number % 1000, other),
                    };
                    (later, earlier)
                })
                .collect();
            wanted.sort_unstable();
            let (mut bytes, mut before) = (Vec::new(), 0);
            for &(later, earlier) in &wanted {
                put(&mut bytes, before, task, later, earlier);
                before = later;
            }
            let (mut reader, mut got) = (PairReader::new(task), Vec::new());
            for block in bytes.chunks(block) {
                let read = reader.read(block, |later, earlier| {
                    got.push((later, earlier));
                    Ok::<_, ()>(())
                });
                prop_assert_eq!(read, Ok(Some(())));
            }
            prop_assert!(reader.is_done());
            prop_assert_eq!(got, wanted);
        }
    }
}
