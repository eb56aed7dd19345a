//! Everything in a training step on the CPU except the model's matrix products: loops over rows of activations, and
//! Muon's update with products of its own (`muon`, `panels`).
//!
//! Activations are `f32` or `Bf16`, computed in `f32` and rounded once; gains and their gradients are `f32`. The
//! specification is `ramlet/engines/torch/kernels/plain.py`. No result depends on the threads or the CPU: sums are
//! computed in lanes of fixed width, multiply-add is fused only where it says so, and sums over rows are computed in pieces that depend
//! on the caller's unit of rows, not on how many rows there are.
//!
//! A kernel is a struct of its operands with a method that processes a range of rows. `team` distributes the rows among
//! threads and calls the method with the widest vectors of the CPU: it is compiled once per vector type. For that,
//! everything it calls is `#[inline(always)]`; a closure might not be inlined, and so not be compiled for wide vectors.

mod accumulate;
mod cross_entropy;
mod dropout;
mod element;
mod exp;
mod gate;
mod muon;
mod norm;
mod panels;
mod pool;
mod qk_norm;
mod rotate;
mod squares;
mod team;
mod vector;
pub(crate) mod widest;

pub use accumulate::accumulate;
pub use cross_entropy::{BadLabel, IGNORE, cross_entropy};
pub use dropout::{Mask, dropout, dropout_add};
pub use element::{Bf16, Element};
pub(crate) use exp::exp;
pub use gate::{gate, gate_backward, gate_backward_in_place};
pub use muon::{Matrix, Settings as MuonSettings, muon, muon_scratch};
pub use norm::{norm, norm_backward};
pub use qk_norm::{Heads, qk_norm, qk_norm_backward};
pub use rotate::{BadPosition, Rotary, rotate};
pub use squares::squares;
pub use team::run_on_threads;
pub(crate) use team::{Kernel, Rows, portion, run};
pub use vector::Line;
#[cfg(target_arch = "x86_64")]
pub(crate) use vector::{Avx2, Avx512};
pub(crate) use vector::{LANES, Portable, Vector, load, store};
#[cfg(test)]
pub(crate) use widest::at_most;
pub(crate) use widest::{Widest, allowed};

#[cfg(test)]
mod team_tests;
#[cfg(test)]
mod tests;
