//! The number of a document among all that a run compares, in the order of the input.

/// Those of earlier runs, from a cache, come before those of this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ordinal(u64);

const OWN: u64 = 1 << 63;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// A document that a task of this run wrote.
    Own { task: u32, index: u32 },
    /// One of an earlier run.
    Cached { file: u32, index: u32 },
}

impl Ordinal {
    pub fn own(task: u32, index: u32) -> Ordinal {
        Ordinal(OWN | u64::from(task) << 32 | u64::from(index))
    }

    pub fn cached(file: u32, index: u32) -> Ordinal {
        Ordinal(u64::from(file) << 32 | u64::from(index))
    }

    pub fn which(self) -> Which {
        let (high, index) = (((self.0 & !OWN) >> 32) as u32, self.0 as u32);
        match self.0 & OWN {
            0 => Which::Cached { file: high, index },
            _ => Which::Own { task: high, index },
        }
    }

    pub fn number(self) -> u64 {
        self.0
    }

    pub fn from_number(number: u64) -> Ordinal {
        Ordinal(number)
    }
}
