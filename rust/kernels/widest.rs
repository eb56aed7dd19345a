//! A limit to the vectors in use, so that tests can compare the vector types.

/// From the narrowest on.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub enum Widest {
    #[cfg(test)]
    Portable,
    Avx2,
    Avx512,
}

#[cfg(not(test))]
#[inline(always)]
pub fn allowed(_: Widest) -> bool {
    true
}

#[cfg(test)]
pub use limited::{allowed, at_most};

#[cfg(test)]
mod limited {
    use super::Widest;
    use std::sync::{Mutex, PoisonError, RwLock};

    /// For all tests that run at the same time: their bits must not change.
    static LIMIT: RwLock<Widest> = RwLock::new(Widest::Avx512);
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    pub fn allowed(vector: Widest) -> bool {
        vector <= *LIMIT.read().unwrap()
    }

    /// Calls `work` with no wider vectors than these.
    pub fn at_most<R>(vector: Widest, work: impl FnOnce() -> R) -> R {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        *LIMIT.write().unwrap() = vector;
        let result = work();
        *LIMIT.write().unwrap() = Widest::Avx512;
        result
    }
}
