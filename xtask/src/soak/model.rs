//! The content that each block of the volume must have, and chance.

/// Bytes of a block.
pub(super) const BLOCK: usize = 4096;

/// Tokens below it stand for one content wherever they are; the others for one of some thousand, by
/// the place.
const SHARED: u8 = 128;

/// Different contents of one token at different places.
const PLACES: u64 = 4096;

/// Blocks of a stretch whose use is known.
const STRETCH: usize = 256;

/// One token for each block; 0 for zeroes.
pub(super) struct Model {
    tokens: Vec<u8>,
    /// Stretches that were ever written to.
    touched: Vec<bool>,
    state: u64,
    extents: u64,
    /// The middle of what is written now.
    near: u64,
}

impl Model {
    pub(super) fn new(blocks: u64, seed: u64) -> Model {
        let count = blocks as usize;
        Model {
            tokens: vec![0; count],
            touched: vec![false; count.div_ceil(STRETCH)],
            state: seed,
            extents: 0,
            near: 0,
        }
    }

    pub(super) fn blocks(&self) -> u64 {
        self.tokens.len() as u64
    }

    /// Extents that were ever written.
    pub(super) fn extents(&self) -> u64 {
        self.extents
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.state)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// A place for so many blocks: three times in four near the last ones.
    pub(super) fn place(&mut self, blocks: u64) -> u64 {
        let room = self.blocks().saturating_sub(blocks) + 1;
        if self.below(64) == 0 {
            self.near = self.below(room);
        }
        let near = self.below(4) != 0;
        if near { (self.near + self.below(1 << 18)) % room } else { self.below(room) }
    }

    fn touch(&mut self, at: u64, blocks: u64) {
        (at as usize / STRETCH..=(at + blocks - 1) as usize / STRETCH)
            .for_each(|stretch| self.touched[stretch] = true);
    }

    /// Blocks get new contents.
    pub(super) fn write(&mut self, at: u64, blocks: u64) -> Vec<u8> {
        self.touch(at, blocks);
        self.extents += 1;
        let mut bytes = vec![0; blocks as usize * BLOCK];
        for (n, block) in bytes.chunks_mut(BLOCK).enumerate() {
            let token = self.below(256) as u8;
            self.tokens[at as usize + n] = token;
            fill(token, at + n as u64, block);
        }
        bytes
    }

    /// Every second block gets a content that many have, the others zeroes.
    pub(super) fn write_every_second(&mut self, at: u64, blocks: u64) -> Vec<u8> {
        self.touch(at, blocks);
        self.extents += blocks / 2;
        let mut bytes = vec![0; blocks as usize * BLOCK];
        for (n, block) in bytes.chunks_mut(BLOCK).enumerate() {
            let token = if n % 2 == 0 { 1 + self.below(u64::from(SHARED) - 1) as u8 } else { 0 };
            self.tokens[at as usize + n] = token;
            fill(token, at + n as u64, block);
        }
        bytes
    }

    /// Blocks become zeroes.
    pub(super) fn zero(&mut self, at: u64, blocks: u64) {
        self.tokens[at as usize..(at + blocks) as usize].fill(0);
    }

    /// The first block that does not hold what it must.
    pub(super) fn differs(&self, at: u64, found: &[u8]) -> Option<u64> {
        let mut right = [0; BLOCK];
        found.chunks(BLOCK).zip(at..).find_map(|(block, place)| {
            fill(self.tokens[place as usize], place, &mut right);
            (block != right).then_some(place)
        })
    }

    /// Stretches that were ever written to: first block and blocks.
    pub(super) fn touched(&self) -> Vec<(u64, u64)> {
        let stretch = |(n, touched): (usize, &bool)| {
            touched.then(|| (n * STRETCH, STRETCH.min(self.tokens.len() - n * STRETCH)))
        };
        self.touched
            .iter()
            .enumerate()
            .filter_map(stretch)
            .map(|(at, blocks)| (at as u64, blocks as u64))
            .collect()
    }
}

/// The content of a token at a place.
fn fill(token: u8, place: u64, block: &mut [u8]) {
    if token == 0 {
        block.fill(0);
        return;
    }
    let place = if token < SHARED { 0 } else { 1 + place % PLACES };
    // One in four can be compressed.
    let repeated = token.is_multiple_of(4);
    let mut state = u64::from(token) << 32 | place;
    for word in block.chunks_mut(8) {
        state = if repeated { state } else { state.wrapping_add(0x9e37_79b9_7f4a_7c15) };
        word.copy_from_slice(&mixed(state).to_le_bytes());
    }
}

fn mixed(state: u64) -> u64 {
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
