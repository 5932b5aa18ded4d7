//! Trees of pages, and leaves that are written in place.

use super::{Reader, checksum, layout::IN_PLACE, number, sealed::PAGE};

/// Bytes of the body of a page.
const BODY: usize = 4032;

/// Pointers of an inner page.
const FANOUT: u64 = 168;

/// Marks the birth of a pointer to a leaf in place.
const PLACED: u64 = 1 << 63;

/// Where a page is, and which version of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pointer {
    pub(super) at: u64,
    pub(super) birth: u64,
    sum: u64,
}

impl Pointer {
    pub(super) fn decode(bytes: &[u8]) -> Pointer {
        Pointer {
            at: number::<8>(bytes, 0),
            birth: number::<8>(bytes, 8),
            sum: number::<8>(bytes, 16),
        }
    }

    /// The pointer to a page, as its header tells it.
    pub(super) fn of_page(bytes: &[u8]) -> Pointer {
        Pointer {
            at: number::<8>(bytes, 32),
            birth: number::<8>(bytes, 40),
            sum: number::<8>(bytes, 48),
        }
    }

    pub(super) fn is_none(&self) -> bool {
        *self == Pointer { at: 0, birth: 0, sum: 0 }
    }
}

/// A leaf of a table.
pub(super) struct Leaf {
    pub(super) number: u64,
    pub(super) at: u64,
    pub(super) birth: u64,
    pub(super) body: Vec<u8>,
    /// Versions of its sectors, when it is written in place.
    versions: Option<[u64; 8]>,
}

impl Leaf {
    /// True when the bytes of a range of the body are of one version.
    pub(super) fn whole(&self, from: usize, bytes: usize) -> bool {
        self.versions
            .is_none_or(|versions| versions[from / 504] == versions[(from + bytes - 1) / 504])
    }
}

/// A table, or the map of a volume.
#[derive(Clone, Copy)]
pub(super) struct Table {
    pub(super) number: u64,
    pub(super) volume: u64,
}

/// The leaves of a tree that can be read, and the ranges of leaves that damage hides.
#[derive(Default)]
pub(super) struct Leaves {
    pub(super) found: Vec<Leaf>,
    pub(super) hidden: Vec<(u64, u64)>,
}

impl Leaves {
    pub(super) fn hides(&self, leaf: u64) -> bool {
        self.hidden.iter().any(|&(first, end)| (first..end).contains(&leaf))
    }
}

impl Reader<'_> {
    /// All leaves of a tree.
    pub(super) fn leaves(&mut self, table: Table, (top, height): (Pointer, u64)) -> Leaves {
        let mut leaves = Leaves::default();
        if height > 0 {
            self.descend(table, top, height - 1, 0, &mut leaves);
        }
        leaves
    }

    fn descend(
        &mut self,
        table: Table,
        pointer: Pointer,
        level: u64,
        page: u64,
        leaves: &mut Leaves,
    ) {
        let what = format!(
            "page {page} of level {level} of table {}, volume {}",
            table.number, table.volume
        );
        self.take_page(pointer.at, &what);
        let read = if pointer.birth & PLACED != 0
            && level == 0
            && (1..=3).contains(&table.number)
            && self.superblock.scheme == IN_PLACE
        {
            self.leaf_in_place(table, pointer, page)
        } else {
            self.page(table, pointer, level, page).map(|body| (body, None))
        };
        let Some((body, versions)) = read else {
            self.wrong(pointer.at, || format!("is not {what}"));
            self.pages_hidden = true;
            let span = FANOUT.saturating_pow(level as u32);
            leaves.hidden.push((page * span, (page + 1) * span));
            return;
        };
        if level == 0 {
            leaves.found.push(Leaf {
                number: page,
                at: pointer.at,
                birth: pointer.birth & !PLACED,
                body,
                versions,
            });
            return;
        }
        for (n, child) in (0..FANOUT).zip(body.chunks_exact(24).map(Pointer::decode)) {
            if !child.is_none() {
                if child.birth & !PLACED > pointer.birth {
                    self.problem(format!("{what} is older than what it names"));
                }
                self.descend(table, child, level - 1, page * FANOUT + n, leaves);
            }
        }
    }

    /// A block holds a page: nothing else may be there.
    pub(super) fn take_page(&mut self, at: u64, what: &str) {
        if !self.superblock.is_zone(at) {
            self.problem(format!("{what} lies outside of the zones, at {at}"));
        } else if let Some(other) = self.pages.insert(at, what.to_owned()) {
            self.problem(format!("block {at} holds {other} and {what}"));
        }
    }

    pub(super) fn page(
        &self,
        table: Table,
        pointer: Pointer,
        level: u64,
        page: u64,
    ) -> Option<Vec<u8>> {
        let bytes = self.metadata(PAGE, pointer.at);
        // Of a sealed page, a pointer keeps the first half of the tag.
        let sum = match self.sealed {
            Some(_) => number::<8>(&bytes, 48),
            None => checksum(self.superblock.key, &bytes, 48),
        };
        let right = &bytes[..4] == b"OFp1"
            && u64::from(bytes[4]) == table.number
            && u64::from(bytes[5]) == level
            && number::<4>(&bytes, 8) == table.volume
            && bytes[16..24] == self.superblock.id[..8]
            && number::<8>(&bytes, 24) == page
            && number::<8>(&bytes, 32) == pointer.at
            && number::<8>(&bytes, 40) == pointer.birth
            && number::<8>(&bytes, 48) == sum
            && pointer.sum == sum;
        right.then(|| bytes[64..].to_vec())
    }

    fn leaf_in_place(
        &self,
        table: Table,
        pointer: Pointer,
        page: u64,
    ) -> Option<(Vec<u8>, Option<[u64; 8]>)> {
        let bytes = self.block(pointer.at);
        let (mut body, mut versions) = (Vec::with_capacity(BODY), [0; 8]);
        let life = pointer.sum;
        for (n, sector) in bytes.chunks_exact(512).enumerate() {
            let (part, version, sum) =
                (&sector[..504], number::<3>(sector, 504), number::<5>(sector, 507));
            let id = number::<8>(&self.superblock.id, 0);
            let identity = [
                id,
                table.number,
                table.volume,
                page,
                pointer.at,
                pointer.birth & !PLACED ^ life << 44,
                (n as u64) << 32 | version,
            ];
            let identity: Vec<u8> =
                identity.iter().flat_map(|number| number.to_le_bytes()).collect();
            let seed = twox_hash::XxHash3_64::oneshot_with_seed(self.superblock.key, &identity);
            if twox_hash::XxHash3_64::oneshot_with_seed(seed, part) & 0xff_ffff_ffff != sum {
                return None;
            }
            body.extend_from_slice(part);
            versions[n] = version;
        }
        Some((body, Some(versions)))
    }
}
