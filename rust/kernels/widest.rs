//! A limit to the vectors in use, so that whole runs (`RAMLET_VECTORS`) and tests can compare the vector types.

use std::sync::OnceLock;

#[cfg_attr(test, allow(dead_code))] // tests set limits of their own
pub const VARIABLE: &str = "RAMLET_VECTORS";

/// From the narrowest on.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub enum Widest {
    Portable,
    Avx2,
    Avx512,
    /// With the instruction for pairs of bf16 numbers.
    Avx512Bf16,
}

pub const NAMES: [(&str, Widest); 4] = [
    ("portable", Widest::Portable),
    ("avx2", Widest::Avx2),
    ("avx512", Widest::Avx512),
    ("avx512bf16", Widest::Avx512Bf16),
];

impl Widest {
    pub fn name(self) -> &'static str {
        NAMES[self as usize].0
    }
}

/// The limit of the environment; the error is a value that names no vectors.
#[cfg_attr(test, allow(dead_code))]
pub fn limit() -> Result<Widest, &'static str> {
    static LIMIT: OnceLock<Result<Widest, String>> = OnceLock::new();
    let found = LIMIT.get_or_init(|| match std::env::var_os(VARIABLE) {
        None => Ok(Widest::Avx512Bf16),
        Some(given) => {
            let known = NAMES.iter().find(|(name, _)| given == *name);
            known.map(|&(_, vector)| vector).ok_or_else(|| given.to_string_lossy().into_owned())
        }
    });
    found.as_ref().copied().map_err(String::as_str)
}

#[cfg(not(test))]
pub fn allowed(vector: Widest) -> bool {
    vector <= limit().unwrap_or(Widest::Avx512Bf16)
}

#[cfg(test)]
pub use limited::{allowed, at_most};

#[cfg(test)]
mod limited {
    use super::Widest;
    use std::sync::{Mutex, PoisonError, RwLock};

    /// For all tests that run at the same time: their bits must not change.
    static LIMIT: RwLock<Widest> = RwLock::new(Widest::Avx512Bf16);
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    pub fn allowed(vector: Widest) -> bool {
        vector <= *LIMIT.read().unwrap()
    }

    /// Calls `work` with no wider vectors than these.
    pub fn at_most<R>(vector: Widest, work: impl FnOnce() -> R) -> R {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        *LIMIT.write().unwrap() = vector;
        let result = work();
        *LIMIT.write().unwrap() = Widest::Avx512Bf16;
        result
    }
}
