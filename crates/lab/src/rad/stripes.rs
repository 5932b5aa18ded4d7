//! Stripes on nodes: encoded, broken, encoded again.

use super::{Model, Options, Placement, manifest::CHUNK_BYTES};

/// A stripe's chunks.
#[derive(Clone)]
struct Stripe {
    chunks: Vec<usize>,
    living: usize,
}

/// All stripes, and where chunks are.
#[derive(Clone)]
pub(super) struct Array {
    options: Options,
    stripes: Vec<Option<Stripe>>,
    present: u64,
    /// The stripe of each chunk.
    stripe_of: Vec<Option<usize>>,
    /// The node of each chunk.
    node_of: Vec<usize>,
    /// Where the next stripe begins.
    turn: usize,
}

/// Reads and writes of each node, and what the encoder does.
pub(super) struct Work {
    nodes: Vec<u64>,
    written: u64,
    encoded: u64,
    compared: f64,
}

impl Work {
    /// Bytes written.
    pub(super) fn bytes(&self) -> u64 {
        self.written * CHUNK_BYTES
    }

    /// Seconds of the model.
    pub(super) fn seconds(&self) -> f64 {
        let slowest = self.nodes.iter().copied().max().unwrap_or(0);
        slowest as f64 * Model::CHUNK_SECONDS
            + self.encoded as f64 * Model::ENCODE_SECONDS
            + self.compared * Model::COMPARE_SECONDS
    }

    /// These chunks are read where they are.
    pub(super) fn read(&mut self, array: &Array, chunks: &[usize]) {
        chunks.iter().for_each(|&chunk| self.nodes[array.node_of[chunk]] += 1);
    }

    fn write(&mut self, node: usize) {
        self.nodes[node] += 1;
        self.written += 1;
    }
}

impl Array {
    pub(super) fn new(options: &Options, chunks: usize) -> Array {
        Array {
            options: *options,
            stripes: Vec::new(),
            present: 0,
            stripe_of: vec![None; chunks],
            node_of: vec![0; chunks],
            turn: 0,
        }
    }

    pub(super) fn work(&self) -> Work {
        Work { nodes: vec![0; self.options.nodes], written: 0, encoded: 0, compared: 0.0 }
    }

    /// Stripes that there are.
    pub(super) fn stripes(&self) -> u64 {
        self.present
    }

    /// Encodes chunks into stripes. Chunks that are `new` are written; others stay on their nodes,
    /// unless another chunk of the stripe is there already.
    pub(super) fn encode(
        &mut self,
        mut chunks: Vec<usize>,
        references: &[u32],
        new: bool,
        work: &mut Work,
    ) {
        if self.options.placement == Placement::Rad && chunks.len() > 1 {
            // Stable: equal counts stay in the order of arrival.
            chunks.sort_by_key(|&chunk| std::cmp::Reverse(references[chunk]));
            work.compared += chunks.len() as f64 * (chunks.len() as f64).log2();
        }
        let (n, k, nodes) = (self.options.n, self.options.k, self.options.nodes);
        for stripe in chunks.chunks(k) {
            let mut free: Vec<bool> = vec![true; nodes];
            let mut homeless = Vec::new();
            for &chunk in stripe {
                let node = self.node_of[chunk];
                if !new && free[node] {
                    free[node] = false;
                } else {
                    homeless.push(chunk);
                }
            }
            let first = self.turn;
            let mut next = (0..nodes).map(|n| (first + n) % nodes).filter(|&node| free[node]);
            for chunk in homeless {
                // There are as many nodes as chunks and parity together.
                let Some(node) = next.next() else { break };
                self.node_of[chunk] = node;
                work.write(node);
            }
            next.take(n - k).for_each(|node| work.write(node));
            work.encoded += stripe.len() as u64;
            stripe.iter().for_each(|&chunk| self.stripe_of[chunk] = Some(self.stripes.len()));
            self.stripes.push(Some(Stripe { chunks: stripe.to_vec(), living: stripe.len() }));
            self.present += 1;
            self.turn = (self.turn + n) % nodes;
        }
    }

    /// Takes dead chunks out. Gives the number of stripes that broke, and what lives in them, in
    /// the order of the stripes: those are gone.
    pub(super) fn remove(&mut self, dead: &[usize]) -> (u64, Vec<usize>) {
        let mut hit = Vec::new();
        for &chunk in dead {
            let Some(place) = self.stripe_of[chunk].take() else { continue };
            if let Some(stripe) = &mut self.stripes[place] {
                stripe.living -= 1;
                hit.push(place);
            }
        }
        hit.sort_unstable();
        hit.dedup();
        let (mut broken, mut living) = (0, Vec::new());
        for place in hit {
            let Some(stripe) = self.stripes[place].take() else { continue };
            self.present -= 1;
            broken += u64::from(stripe.living > 0);
            living.extend(
                stripe.chunks.into_iter().filter(|&chunk| self.stripe_of[chunk] == Some(place)),
            );
        }
        (broken, living)
    }
}
