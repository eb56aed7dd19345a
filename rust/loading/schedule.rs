//! Which example of which dataset a sample is. Samples are numbered without end, and each can be computed directly.

use super::shuffle::{Shuffle, key};

/// A mix is shuffled in blocks of this many samples, each with the right proportions. Small, so that a batch is close
/// to them too; the examples themselves are shuffled over their whole dataset.
pub const MIX_BLOCK: u64 = 256;

const EXAMPLES: u64 = 0;
const MIX: u64 = 1;
/// 2 is that of streams (loading/stream_loader.py).
const OFFSET: u64 = 3;

/// A dataset in the schedule. No number is 0.
#[derive(Clone, Copy, Debug)]
pub struct Turns {
    pub examples: u64,
    pub weight: u64,
    /// Ids from one example to the next.
    pub stride: u64,
    /// Whether examples start elsewhere in each epoch after the first.
    pub shifted: bool,
}

/// The window that a sample is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub dataset: usize,
    pub example: u64,
    /// Ids by which the example starts later than in the first epoch.
    pub offset: u64,
}

pub struct Schedule {
    datasets: Vec<Turns>,
    shuffled: bool,
}

impl Schedule {
    pub fn new(datasets: Vec<Turns>, shuffled: bool) -> Schedule {
        Schedule { datasets, shuffled }
    }

    pub fn at(&self, sample: u64, seed: u64) -> Window {
        let (dataset, own) = self.dataset_of(self.in_block(sample, seed));
        let Turns { examples, stride, shifted, .. } = self.datasets[dataset];
        let (epoch, place) = (own / examples, own % examples);
        let example = match self.shuffled {
            true => Shuffle::new(examples, key(&[seed, EXAMPLES, dataset as u64, epoch])).at(place),
            false => place,
        };
        // Never beyond the start of the last example: it stays where it is, and the epoch has as many as the others.
        let offset = match shifted && epoch > 0 && example + 1 < examples {
            true => key(&[seed, OFFSET, dataset as u64, epoch]) % stride,
            false => 0,
        };
        Window { dataset, example, offset }
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
        let mut all: u64 = self.datasets.iter().map(|turns| turns.weight).sum();
        let mut left = sample;
        for (dataset, &Turns { weight, .. }) in self.datasets.iter().enumerate() {
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

    fn turns(examples: u64, weight: u64) -> Turns {
        Turns { examples, weight, stride: 1000, shifted: false }
    }

    #[test]
    fn offsets_differ_from_epoch_to_epoch() {
        let schedule = Schedule::new(vec![Turns { shifted: true, ..turns(2, 1) }], false);
        let offsets: std::collections::BTreeSet<u64> =
            (0..100).map(|epoch| schedule.at(2 * epoch, 5).offset).collect();
        assert!(offsets.len() > 85, "{offsets:?}");
    }

    proptest! {
        #[test]
        fn shares_are_kept_and_no_sample_is_skipped(
            weights in prop::collection::vec(1u64..1_000, 1..6),
            samples in 1u64..3_000,
        ) {
            let schedule = Schedule::new(weights.iter().map(|&weight| turns(10, weight)).collect(), false);
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
            let schedule = Schedule::new(vec![turns(examples, 7)], true);
            let mut seen: Vec<u64> =
                (0..examples).map(|place| schedule.at(epoch * examples + place, seed).example).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..examples).collect::<Vec<_>>());
        }

        #[test]
        fn a_shifted_epoch_has_one_offset_and_the_same_order(
            examples in 1u64..100,
            stride in 1u64..2000,
            seed in any::<u64>(),
            epoch in 0u64..1 << 40,
        ) {
            let plain = Turns { stride, ..turns(examples, 7) };
            let shifted = Schedule::new(vec![Turns { shifted: true, ..plain }], true);
            let plain = Schedule::new(vec![plain], true);
            let mut offsets = std::collections::BTreeSet::new();
            for sample in epoch * examples..(epoch + 1) * examples {
                let window = shifted.at(sample, seed);
                prop_assert_eq!(Window { offset: 0, ..window }, plain.at(sample, seed));
                prop_assert!(window.offset < stride && (epoch > 0 || window.offset == 0));
                match window.example + 1 == examples {
                    true => prop_assert_eq!(window.offset, 0),
                    false => { offsets.insert(window.offset); }
                }
            }
            prop_assert!(offsets.len() <= 1);
        }
    }
}
