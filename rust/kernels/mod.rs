//! All of a training step on the CPU that is not a matrix product: loops over rows of activations.
//!
//! Activations are `f32` or `Bf16`, reckoned in `f32` and rounded once; gains and their gradients are `f32`.
//! The specification is `ramlet/engines/torch/kernels/plain.py`. No number depends on the threads or on the
//! processor: sums are taken in lanes of fixed width, products are not fused, and what is summed over
//! rows is summed in pieces that the caller's unit of rows decides, not their number.
//!
//! A kernel is a struct of its operands with a method that does some rows. `team` shares the rows among threads
//! and calls it in the widest vectors the processor has: the method is compiled once for each kind.
//! For that all it calls is `#[inline(always)]`; a closure in there might stay outside and narrow.

mod accumulate;
mod cross_entropy;
mod element;
mod exp;
mod gate;
mod norm;
mod qk_norm;
mod rotate;
mod squares;
mod team;
mod vector;

pub use accumulate::accumulate;
pub use cross_entropy::{BadLabel, IGNORE, cross_entropy};
pub use element::{Bf16, Element};
pub use gate::{gate, gate_backward};
pub use norm::{norm, norm_backward};
pub use qk_norm::{Heads, qk_norm, qk_norm_backward};
pub use rotate::{BadPosition, Turn, rotate};
pub use squares::squares;
pub use team::together;

#[cfg(test)]
mod tests;
