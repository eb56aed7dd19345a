//! Which example of which dataset a sample is. Samples are numbered without end, and each can be computed directly.

use super::shuffle::{Shuffle, key};

/// A mix is shuffled in blocks of this many samples, each with the right proportions. Small, so that a batch is close
/// to them too; the examples themselves are shuffled over their whole dataset.
pub const MIX_BLOCK: u64 = 256;

const EXAMPLES: u64 = 0;
const MIX: u64 = 1;

pub struct Schedule {
    /// (examples, weight) of each dataset; neither is 0.
    datasets: Vec<(u64, u64)>,
    shuffled: bool,
}

impl Schedule {
    pub fn new(datasets: Vec<(u64, u64)>, shuffled: bool) -> Schedule {
        Schedule { datasets, shuffled }
    }

    /// The dataset and its example.
    pub fn at(&self, sample: u64, seed: u64) -> (usize, u64) {
        let (dataset, own) = self.dataset_of(self.in_block(sample, seed));
        let (examples, _) = self.datasets[dataset];
        let (epoch, place) = (own / examples, own % examples);
        if !self.shuffled {
            return (dataset, place);
        }
        (dataset, Shuffle::new(examples, key(&[seed, EXAMPLES, dataset as u64, epoch])).at(place))
    }

    fn in_block(&self, sample: u64, seed: u64) -> u64 {
        if !self.shuffled || self.datasets.len() == 1 {
            return sample;
        }
        let (block, place) = (sample / MIX_BLOCK, sample % MIX_BLOCK);
        block * MIX_BLOCK + Shuffle::new(MIX_BLOCK, key(&[seed, MIX, block])).at(place)
    }

    /// Sample n goes to the first dataset if its share of n + 1 samples, rounded down, is one more than its share of n.
    /// The rest is divided among the others in the same way. So how many samples each has depends on n alone, and
    /// differs from its share by less than one plus the number of datasets before it.
    fn dataset_of(&self, sample: u64) -> (usize, u64) {
        let mut all: u64 = self.datasets.iter().map(|(_, weight)| weight).sum();
        let mut left = sample;
        for (dataset, &(_, weight)) in self.datasets.iter().enumerate() {
            let share = |samples: u64| (u128::from(samples) * u128::from(weight) / u128::from(all)) as u64;
            let own = share(left);
            if share(left + 1) > own {
                return (dataset, own);
            }
            left -= own;
            all -= weight;
        }
        unreachable!("the last dataset gets all that remain")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_are_kept_and_no_sample_is_skipped(
            weights in prop::collection::vec(1u64..1_000, 1..6),
            samples in 1u64..3_000,
        ) {
            let schedule = Schedule::new(weights.iter().map(|&weight| (10, weight)).collect(), false);
            let all: u64 = weights.iter().sum();
            let mut counts = vec![0u64; weights.len()];
            for sample in 0..samples {
                let (dataset, own) = schedule.dataset_of(sample);
                prop_assert_eq!(own, counts[dataset]);
                counts[dataset] += 1;
            }
            for (at, (&count, &weight)) in counts.iter().zip(&weights).enumerate() {
                let share = samples as f64 * weight as f64 / all as f64;
                prop_assert!((count as f64 - share).abs() < at as f64 + 1.0);
            }
        }

        #[test]
        fn an_epoch_has_every_example_once(examples in 1u64..500, seed in any::<u64>(), epoch in 0u64..1 << 40) {
            let schedule = Schedule::new(vec![(examples, 7)], true);
            let mut seen: Vec<u64> =
                (0..examples).map(|place| schedule.at(epoch * examples + place, seed).1).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..examples).collect::<Vec<_>>());
        }
    }
}
