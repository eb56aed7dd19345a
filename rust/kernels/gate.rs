//! SwiGLU: silu of the first half of a row times the second half.

use super::element::Element;
use super::exp::exp;
use super::team::{Kernel, Rows, portion, run};
use super::vector::{LANES, Vector, load, store};
use std::ops::Range;

#[inline(always)]
fn one_plus_exp_of_minus<V: Vector>(x: V) -> V {
    exp(V::splat(0.0) - x) + V::splat(1.0)
}

struct Gate<'a, T> {
    gate_up: &'a [T],
    half: usize,
    out: Rows<'a, T>,
}

impl<T: Element> Kernel for Gate<'_, T> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        for row in rows {
            let (first, second) = self.gate_up[row * 2 * self.half..][..2 * self.half].split_at(self.half);
            // SAFETY: each row is in one range only.
            let out = unsafe { self.out.row(row) };
            let mut at = 0;
            while at < self.half {
                let x = load::<V, _>(first, at);
                store(x / one_plus_exp_of_minus(x) * load(second, at), out, at);
                at += LANES;
            }
        }
    }
}

/// `half` columns of `out` from twice as many of `gate_up`.
pub fn gate<T: Element>(gate_up: &[T], half: usize, out: &mut [T], threads: usize) {
    assert_eq!(gate_up.len(), 2 * out.len());
    let kernel = Gate { gate_up, half, out: Rows::new(out, half) };
    run(&kernel, kernel.out.len(), portion(3 * half * size_of::<T>()), threads);
}

struct GateBackward<'a, T> {
    /// In the place of `act` if there is none.
    d_act: Option<&'a [T]>,
    half: usize,
    gate_up: Rows<'a, T>,
    act: Rows<'a, T>,
}

impl<T: Element> Kernel for GateBackward<'_, T> {
    #[inline(always)]
    fn rows<V: Vector>(&self, rows: Range<usize>) {
        for row in rows {
            // SAFETY: each row is in one range only.
            let (gate_up, act) = unsafe { (self.gate_up.row(row), self.act.row(row)) };
            let (first, second) = gate_up.split_at_mut(self.half);
            let one = V::splat(1.0);
            let d_act = self.d_act.map(|d_act| &d_act[row * self.half..][..self.half]);
            let mut at = 0;
            while at < self.half {
                let (x, up): (V, V) = (load(first, at), load(second, at));
                let grad = match d_act {
                    Some(d_act) => load::<V, _>(d_act, at),
                    None => load::<V, _>(act, at),
                };
                let sigmoid = one / one_plus_exp_of_minus(x);
                let silu = x * sigmoid;
                let silu_grad = x * (one - sigmoid) + one; // times sigmoid
                store(silu * up, act, at);
                store(grad * up * sigmoid * silu_grad, first, at);
                store(grad * silu, second, at);
                at += LANES;
            }
        }
    }
}

/// Overwrites `gate_up` with its gradient and fills `act` with the output of `gate`.
pub fn gate_backward<T: Element>(gate_up: &mut [T], d_act: &[T], half: usize, act: &mut [T], threads: usize) {
    assert_eq!(d_act.len(), act.len());
    run_backward(gate_up, Some(d_act), half, act, threads);
}

/// Overwrites `gate_up` with its gradient, and the gradient of the output of `gate` with that output.
pub fn gate_backward_in_place<T: Element>(gate_up: &mut [T], d_act: &mut [T], half: usize, threads: usize) {
    run_backward(gate_up, None, half, d_act, threads);
}

fn run_backward<T: Element>(
    gate_up: &mut [T],
    d_act: Option<&[T]>,
    half: usize,
    act: &mut [T],
    threads: usize,
) {
    assert_eq!(gate_up.len(), 2 * act.len());
    let (gate_up, act) = (Rows::new(gate_up, 2 * half), Rows::new(act, half));
    let rows = act.len();
    run(&GateBackward { d_act, half, gate_up, act }, rows, portion(6 * half * size_of::<T>()), threads);
}
