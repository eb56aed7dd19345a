//! Against attention in f64, and bits against those of other threads, sequences and vector types.

use super::mask::SHARED;
use super::*;
use crate::kernels::{Bf16, Widest, at_most};

/// Numbers between -2 and 2.
fn numbers<T: Element>(count: usize, seed: usize) -> Vec<T> {
    let number = |i: usize| ((i + seed * 7919) * 2654435761 % 1000003) as f32 / 250_000.75 - 2.0;
    (0..count).map(|i| T::narrow(number(i))).collect()
}

#[derive(Clone)]
struct Case<T> {
    sizes: Sizes,
    qkv: Vec<T>,
    d_out: Vec<T>,
    documents: Option<Vec<i64>>,
}

#[derive(PartialEq)]
struct Got<T> {
    out: Vec<T>,
    stats: Vec<f32>,
    /// (tokens, query heads, key heads, value heads)
    d_qkv: Vec<T>,
}

impl<T: Element> Case<T> {
    fn new(sequences: usize, sizes: Sizes, documents: Option<Vec<i64>>) -> Case<T> {
        let tokens = sequences * sizes.seq_len;
        let qkv = numbers(tokens * (sizes.heads + 2 * sizes.kv_heads) * sizes.width, 1);
        let d_out = numbers(tokens * sizes.heads * sizes.width, 2);
        Case { sizes, qkv, d_out, documents }
    }

    fn tokens(&self) -> usize {
        self.d_out.len() / (self.sizes.heads * self.sizes.width)
    }

    /// The first columns of queries, keys and values, and how many there are.
    fn columns(&self) -> ([usize; 3], usize) {
        let Sizes { heads, kv_heads, width, .. } = self.sizes;
        ([0, heads * width, (heads + kv_heads) * width], (heads + 2 * kv_heads) * width)
    }

    fn given(&self) -> Given<'_, T> {
        let (firsts, stride) = self.columns();
        let [q, k, v] = firsts.map(|first| View { data: &self.qkv, stride, first });
        Given { q, k, v, documents: self.documents.as_deref(), sizes: self.sizes }
    }

    fn got(&self, threads: usize) -> Got<T> {
        // What was there before must not matter.
        let nan = T::narrow(f32::NAN);
        let (mut out, mut d_qkv) = (vec![nan; self.d_out.len()], vec![nan; self.qkv.len()]);
        let mut stats = vec![f32::NAN; self.tokens() * self.sizes.heads * 2];
        let mut lines = vec![Line([f32::NAN; LANES]); scratch(self.sizes, self.tokens(), threads)];
        forward(self.given(), &mut out, &mut stats, &mut lines, threads);
        let (firsts, stride) = self.columns();
        let gradients = ViewMut::parts(&mut d_qkv, stride, firsts);
        lines.fill(Line([f32::NAN; LANES]));
        backward(self.given(), &out, &stats, &self.d_out, gradients, &mut lines, threads);
        Got { out, stats, d_qkv }
    }

    /// The largest differences from the oracle, of the result and of gradients, relative to the largest number (or 0.5).
    fn errors(&self) -> [f64; 2] {
        let (got, expected) = (self.got(2), oracle::attention(self.given(), &self.d_out));
        let most = |numbers: &mut dyn Iterator<Item = f64>| {
            numbers.fold(0.0, |most, x| if x <= most { most } else { x })
        };
        let error = |got: &[T], expected: &[f64]| {
            let scale = most(&mut expected.iter().map(|x| x.abs()));
            most(&mut got.iter().zip(expected).map(|(got, x)| (f64::from(got.widen()) - x).abs()))
                / scale.max(0.5)
        };
        let (firsts, stride) = self.columns();
        let mut worst: f64 = 0.0;
        for (gradient, first) in expected.gradients.iter().zip(firsts) {
            let columns = gradient.len() / self.tokens();
            let rows = got.d_qkv.chunks(stride).flat_map(|row| &row[first..][..columns]);
            let error = error(&rows.copied().collect::<Vec<T>>(), gradient);
            worst = if error <= worst { worst } else { error };
        }
        [error(&got.out, &expected.out), worst]
    }
}

fn sizes(seq_len: usize, heads: usize, kv_heads: usize, width: usize) -> Sizes {
    Sizes { seq_len, heads, kv_heads, width }
}

/// Documents of these lengths, in turn.
fn documents(sequences: usize, seq_len: usize, lengths: &[usize]) -> Option<Vec<i64>> {
    let mut ids = Vec::new();
    for (document, &length) in lengths.iter().cycle().enumerate() {
        if ids.len() >= sequences * seq_len {
            break;
        }
        ids.extend(std::iter::repeat_n(document as i64 * 3 - 7, length));
    }
    ids.truncate(sequences * seq_len);
    Some(ids)
}

fn cases<T: Element>() -> Vec<Case<T>> {
    let mut cases = Vec::new();
    for (sequences, sizes) in [
        (3, sizes(1, 2, 1, 16)),
        (2, sizes(7, 1, 1, 32)),
        (2, sizes(33, 3, 3, 48)),
        (1, sizes(64, 2, 2, 64)),
        (1, sizes(65, 4, 2, 80)),
        (1, sizes(130, 2, 1, 96)),
        (1, sizes(97, 1, 1, 160)),
        (1, sizes(200, 1, 1, 256)),
        (2, sizes(40, 2, 1, 20)),
        (1, sizes(300, 4, 1, 16)),
    ] {
        cases.push(Case::new(sequences, sizes, None));
    }
    for lengths in [&[1][..], &[5, 90, 1, 1, 40], &[64], &[200, 3], &[32, 33]] {
        let sizes = sizes(230, 2, 1, 16);
        cases.push(Case::new(2, sizes, documents(2, 230, lengths)));
    }
    for (shared, lengths) in [(1, &[1][..]), (40, &[5, 90]), (64, &[64]), (100, &[1, 1, 40]), (200, &[7])] {
        let mut ids = documents(2, 230, lengths).expect("documents");
        for sequence in ids.chunks_mut(230) {
            // Not -1, which only the beginning has.
            sequence.iter_mut().for_each(|id| *id += 100);
            sequence[..shared].fill(SHARED);
        }
        cases.push(Case::new(2, sizes(230, 2, 1, 16), Some(ids)));
    }
    cases
}

#[test]
fn results_and_gradients_are_those_of_the_definition() {
    for case in cases::<f32>() {
        let [result, gradient] = case.errors();
        // A score of 20 has an error of 1e-6, and its exponential that of the score.
        assert!(result < 1e-5 && gradient < 1e-5, "{:?}: {result} {gradient}", case.sizes);
    }
    for case in cases::<Bf16>() {
        let [result, gradient] = case.errors();
        // Half a step of bf16 is 2^-9. The backward pass starts from rounded results, and subtracts.
        assert!(result < 0.0021 && gradient < 0.012, "{:?}: {result} {gradient}", case.sizes);
    }
}

#[test]
fn neither_threads_nor_vectors_nor_other_sequences_change_a_bit() {
    fn check<T: Element + PartialEq>(case: &Case<T>) {
        let alone = case.got(1);
        for threads in 2..=4 {
            assert!(case.got(threads) == alone, "{:?} {threads}", case.sizes);
        }
        for vector in [Widest::Avx512, Widest::Avx2, Widest::Portable] {
            assert!(at_most(vector, || case.got(1)) == alone, "{:?} {vector:?}", case.sizes);
        }
        let tokens = case.sizes.seq_len;
        let part = |all: &[T], sequence: usize| {
            let count = all.len() / case.tokens() * tokens;
            all[sequence * count..][..count].to_vec()
        };
        for sequence in 0..case.tokens() / tokens {
            let documents = case.documents.as_ref().map(|all| all[sequence * tokens..][..tokens].to_vec());
            let (qkv, d_out) = (part(&case.qkv, sequence), part(&case.d_out, sequence));
            let got = Case { sizes: case.sizes, qkv, d_out, documents }.got(2);
            assert!(got.out == part(&alone.out, sequence) && got.d_qkv == part(&alone.d_qkv, sequence));
        }
    }
    cases::<f32>().iter().for_each(check);
    check(&Case::<Bf16>::new(2, sizes(150, 3, 1, 48), None));
    check(&Case::<Bf16>::new(1, sizes(150, 3, 3, 16), documents(1, 150, &[11, 70])));
}

#[test]
fn one_pass_and_two_give_the_same_bits() {
    // One key and value head: with several threads, queries and keys are two passes.
    let case = Case::<f32>::new(1, sizes(1000, 2, 1, 16), None);
    let scratch = |threads| super::scratch(case.sizes, case.tokens(), threads) / threads;
    assert!(scratch(2) < scratch(1));
    assert!(case.got(1) == case.got(2));
}

#[test]
fn fewer_sequences_need_no_more_scratch() {
    // Five heads for four threads are two passes, four are one, which needs more.
    let sizes = sizes(1000, 1, 1, 16);
    let scratch = |sequences: usize| scratch(sizes, sequences * sizes.seq_len, 4);
    assert!((1..9).all(|sequences| scratch(sequences) <= scratch(sequences + 1)));
    assert!(scratch(2) < scratch(4));
}

#[test]
fn scores_may_be_large() {
    let mut case = Case::<f32>::new(1, sizes(100, 1, 1, 16), None);
    case.qkv.iter_mut().for_each(|number| *number *= 30.0);
    let got = case.got(1);
    assert!(got.out.iter().chain(&got.d_qkv).all(|number| number.is_finite()));
    // A score has an error of 2^-24 of its size, and its exponential that of the score.
    let [result, gradient] = case.errors();
    assert!(result < 1e-3 && gradient < 1e-3, "{result} {gradient}");
}

#[test]
fn a_nan_is_not_hidden_and_stays_in_its_sequence() {
    let mut case = Case::<f32>::new(2, sizes(70, 1, 1, 16), None);
    case.qkv[3] = f32::NAN;
    let got = case.got(1);
    assert!(got.out[..16].iter().all(|number| number.is_nan()));
    assert!(got.out[70 * 16..].iter().chain(&got.d_qkv[70 * 48..]).all(|number| number.is_finite()));
}

#[test]
#[should_panic(expected = "assertion failed")]
fn gradients_that_overlap_are_refused() {
    let case = Case::<f32>::new(1, sizes(4, 1, 1, 16), None);
    let got = case.got(1);
    let mut d_qkv = case.qkv.clone();
    let gradients = ViewMut::parts(&mut d_qkv, 48, [0, 15, 32]);
    let mut lines = vec![Line([0.0; LANES]); scratch(case.sizes, 4, 1)];
    backward(case.given(), &got.out, &got.stats, &case.d_out, gradients, &mut lines, 1);
}
