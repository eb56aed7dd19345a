//! Records in the order of their keys, in a bounded buffer: less memory means more passes over them.

use crate::error::Result;

/// Ranges of keys that are counted in one pass.
const BINS: usize = 4096;

/// What is to be put in order.
pub trait Source {
    /// Calls `each` with the key and the value of every record. The values of one key come in ascending order.
    fn scan(&mut self, each: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<()>;
}

/// The records with keys from `first` to `last`, of which there are at most `count`, in the order of (key, value).
/// `buffer` has memory for as many as fit.
pub fn in_order(
    source: &mut dyn Source,
    (first, last): (u64, u64),
    count: u64,
    buffer: &mut Buffer,
    each: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<()> {
    let within = |key: u64| (first..=last).contains(&key);
    if count <= buffer.capacity as u64 {
        let records = &mut buffer.records;
        records.clear();
        records.reserve_exact(count as usize);
        source.scan(&mut |key, value| {
            if within(key) {
                records.push((key, value));
            }
            Ok(())
        })?;
        records.sort_unstable();
        return records.iter().try_for_each(|&(key, value)| each(key, value));
    }
    if first == last {
        return source.scan(&mut |key, value| if within(key) { each(key, value) } else { Ok(()) });
    }
    let shift = (BINS.ilog2()..=64).find(|bits| (last - first).checked_shr(*bits).unwrap_or(0) == 0);
    let shift = shift.expect("no number has more bits") - BINS.ilog2();
    let mut counts = vec![0u64; BINS];
    source.scan(&mut |key, _| {
        if within(key) {
            counts[((key - first) >> shift) as usize] += 1;
        }
        Ok(())
    })?;
    let mut bin = 0;
    while bin < BINS {
        let (start, mut together) = (bin, counts[bin]);
        bin += 1;
        while bin < BINS && together + counts[bin] <= buffer.capacity as u64 {
            together += counts[bin];
            bin += 1;
        }
        if together > 0 {
            let from = first + ((start as u64) << shift);
            let to = (first as u128 + ((bin as u128) << shift) - 1).min(last as u128) as u64;
            in_order(source, (from, to), together, buffer, each)?;
        }
    }
    Ok(())
}

/// Memory for records.
pub struct Buffer {
    records: Vec<(u64, u64)>,
    capacity: usize,
}

impl Buffer {
    pub fn new(bytes: usize) -> Buffer {
        Buffer { records: Vec::new(), capacity: (bytes / size_of::<(u64, u64)>()).max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Listed(Vec<(u64, u64)>);

    impl Source for Listed {
        fn scan(&mut self, each: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<()> {
            self.0.iter().try_for_each(|&(key, value)| each(key, value))
        }
    }

    proptest! {
        #[test]
        fn any_buffer_gives_the_same_order(
            keys in prop::collection::vec(prop_oneof![0u64..4, any::<u64>(), Just(u64::MAX)], 0..300),
            capacity in 1usize..100,
        ) {
            let records: Vec<(u64, u64)> = keys.into_iter().zip(0..).collect();
            let mut sorted = records.clone();
            sorted.sort_unstable();
            let mut got = Vec::new();
            let mut buffer = Buffer::new(capacity * 16);
            let count = records.len() as u64;
            in_order(&mut Listed(records), (0, u64::MAX), count, &mut buffer, &mut |key, value| {
                got.push((key, value));
                Ok(())
            }).unwrap();
            prop_assert_eq!(got, sorted);
        }
    }
}
