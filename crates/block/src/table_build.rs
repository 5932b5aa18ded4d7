//! A checkpoint being built: pages that are taken and let go of, and the changes.

use onefold_core::{Pba, Result, VolumeId};

use crate::{
    format::{
        page::{Form, Table},
        record::WindowNumber,
        superblock::Root,
    },
    kernel::Kernel,
    overlay::Tables,
    scheme::shadow::DomainCounts,
    table::{
        PageSpace, rebuild,
        rebuild::{Change, PageWriter, Rebuild},
    },
};

/// Pages of a checkpoint: taken from the allocator, and let go of.
pub(crate) struct Space<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) taken: Vec<Pba>,
    pub(crate) let_go: Vec<Pba>,
    /// All pages taken.
    pub(crate) pages: Vec<Pba>,
}

impl PageSpace for Space<'_> {
    fn allocate(&mut self) -> Result<Pba> {
        let mut state = self.kernel.state.lock();
        let zones = self.kernel.zones(state.releases.zone_table());
        let pba = state.allocator.place_page(&zones)?;
        self.taken.push(pba);
        self.pages.push(pba);
        Ok(pba)
    }

    fn release(&mut self, address: Pba) {
        self.let_go.push(address);
    }
}

/// A checkpoint being built.
pub(crate) struct TableBuild<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) old: &'a Tables,
    pub(crate) birth: WindowNumber,
    pub(crate) space: Space<'a>,
    pub(crate) writer: PageWriter<'a>,
    pub(crate) freed: Vec<Pba>,
    /// Blocks that came into use, or out of it.
    pub(crate) bits: Vec<(Pba, bool)>,
    /// New leaves are written in place from now on, and this tells their life from others.
    pub(crate) in_place: Option<u64>,
    pub(crate) mapped: u64,
    pub(crate) live: u64,
    /// Packs that mappings name, and how many do.
    pub(crate) packs: u64,
    pub(crate) fragments: u64,
    /// The leaves of maps that clients changed, if anybody wants to know.
    pub(crate) changed: Vec<(VolumeId, u64)>,
    /// Pages of shared maps could not be read: counts may be too high.
    pub(crate) inexact: bool,
    /// The blocks that each domain with limits stores.
    pub(crate) domains: DomainCounts,
}

impl<'a> TableBuild<'a> {
    /// A checkpoint after `old` that contains windows up to `birth`.
    pub(crate) fn new(kernel: &'a Kernel, old: &'a Tables, birth: WindowNumber) -> TableBuild<'a> {
        TableBuild {
            kernel,
            old,
            birth,
            space: Space { kernel, taken: Vec::new(), let_go: Vec::new(), pages: Vec::new() },
            writer: PageWriter::new(&*kernel.disk),
            freed: Vec::new(),
            bits: Vec::new(),
            in_place: None,
            mapped: old.state.mapped_blocks,
            live: old.state.live_blocks,
            packs: old.state.packs,
            fragments: old.state.fragments,
            changed: Vec::new(),
            inexact: old.state.inexact,
            domains: DomainCounts::default(),
        }
    }

    /// A mapping counts from now on.
    pub(crate) fn maps_one_more(&mut self, form: Form) {
        self.mapped += 1;
        self.fragments += u64::from(form.is_packed());
    }

    /// A mapping counted until now.
    pub(crate) fn maps_one_less(&mut self, form: Form) {
        self.mapped = self.mapped.saturating_sub(1);
        self.fragments = self.fragments.saturating_sub(u64::from(form.is_packed()));
    }

    /// Rewrites leaves of a table, and the pages above them.
    pub(crate) fn rebuild(
        &mut self,
        table: Table,
        volume: u32,
        root: &Root,
        leaves: &[u64],
        change: Change<'_>,
    ) -> Result<Root> {
        let TableBuild { kernel, space, writer, birth, in_place, .. } = self;
        let in_place = in_place
            .filter(|_| matches!(table, Table::Map | Table::References | Table::Fingerprints));
        let mut work = Rebuild {
            pages: &kernel.pages,
            identity: &kernel.identity,
            space,
            writer,
            birth: *birth,
            in_place,
        };
        rebuild(&mut work, table, volume, root, leaves, change)
    }
}
