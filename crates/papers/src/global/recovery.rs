//! Table 3: what recovery moves, and how long it takes on the paper's cluster in virtual time.

use std::collections::{BTreeMap, VecDeque};

use onefold_core::object::{ObjectName, PoolKind};

use super::{
    clock::{
        cluster::{Cluster, OSDS},
        world::World,
    },
    site::{OBJECT_BYTES, in_blocks},
};
use crate::item::{Extent, Good, Item, Judgement, Look, no_figure, nothing};
use onefold_lab::report::{Figure, Table};

/// Recovery.
pub(super) const ITEMS: [Item; 1] = [Item {
    id: "table3",
    name: "Table 3: recovery",
    says: "with 1, 2 and 4 of 16 OSDs lost recovery takes 68.04, 71.35 and 81.77 s, and 43.72, \
           44.51 and 54.78 s (0.64, 0.62 and 0.67) with 50 % duplicates",
    band: "time 0.55-0.75 of the original; bytes moved 0.5 ± 0.05",
    fitted: true,
    calibrated: None,
    cases: nothing,
    judge: table3,
    draw: no_figure,
}];

const CHUNK: u64 = 32 << 10;
const OBJECT_CHUNKS: u64 = 128;

/// A map's entry with its key, and a reference.
const ENTRY: u64 = 62;
const REFERENCE: u64 = 26;

/// Objects that a primary recovers at a time: `osd_recovery_max_active` of Ceph 12.
const ACTIVE: usize = 3;

/// An object: its name, its bytes of data, and of keys and what it takes by itself.
type Stored = (ObjectName, u64, u64);

/// Bytes and nanoseconds until all that lay on the first `lost` OSDs, which are of one server, lies
/// there again.
fn recover(objects: &[Stored], lost: usize) -> (u64, u64) {
    let world = World::new(PoolKind::Replicated, 1);
    let mut queues: Vec<VecDeque<_>> = (0..OSDS).map(|_| VecDeque::new()).collect();
    let mut moved = 0;
    for (object, data, keys) in objects {
        let [first, second, _] = Cluster::placed(object);
        let (from, to) = if first < lost { (second, first) } else { (first, second) };
        if to < lost {
            moved += data + keys;
            queues[from].push_back((from, to, (*data, *keys)));
        }
    }
    (moved, world.recover(queues, ACTIVE))
}

fn table3(extent: &Extent, _: &Look<'_>) -> Judgement {
    // 100 GB in full; the time of a smaller store is scaled by its size.
    let objects: u64 = if extent.quick { 1_280 } else { 25_600 };
    let scale = 25_600.0 / objects as f64;
    let mut judgement =
        Judgement { blocks: objects * OBJECT_CHUNKS * in_blocks(CHUNK), ..Judgement::default() };
    let named = |kind: &str, n: u64| ObjectName::chunk(format!("{kind}{n}"));
    let original: Vec<Stored> =
        (0..objects).map(|n| (named("plain", n), OBJECT_CHUNKS * CHUNK, 0)).collect();
    // Every chunk is there twice: as many references, half as many chunks. Maps stay in the
    // metadata objects.
    let maps = (0..objects).map(|n| (named("map", n), 0, OBJECT_CHUNKS * ENTRY + OBJECT_BYTES));
    let chunks = (0..objects * OBJECT_CHUNKS / 2)
        .map(|n| (named("chunk", n), CHUNK, 2 * REFERENCE + OBJECT_BYTES));
    let ours: Vec<Stored> = maps.chain(chunks).collect();
    let mut rows = Vec::new();
    let (mut bytes, mut times) = (BTreeMap::new(), BTreeMap::new());
    for (lost, text, text_ours) in [(1, 68.04, 43.72), (2, 71.35, 44.51), (4, 81.77, 54.78)] {
        let (moved, time) = recover(&original, lost);
        let (moved_ours, time_ours) = recover(&ours, lost);
        let seconds = |time: u64| time as f64 / 1e9 * scale;
        bytes.insert(lost, moved_ours as f64 / moved as f64);
        times.insert(lost, time_ours as f64 / time as f64);
        let of =
            [text, seconds(time), text_ours, seconds(time_ours)].map(|value| format!("{value:.2}"));
        rows.push(
            [
                vec![lost.to_string()],
                of.to_vec(),
                vec![format!("{:.3}", times[&lost]), format!("{:.3}", bytes[&lost])],
            ]
            .concat(),
        );
    }
    let list = |of: &BTreeMap<usize, f64>| {
        of.iter()
            .map(|(lost, ratio)| format!("{lost} lost: {ratio:.3}"))
            .collect::<Vec<_>>()
            .join("; ")
    };
    for (lost, ratio) in &times {
        judgement.band(
            format!("{lost} lost: {ratio:.3} of the time"),
            *ratio,
            0.55..=0.75,
            Good::Less,
        );
    }
    judgement.check(
        format!("bytes {}", list(&bytes)),
        bytes.values().all(|ratio| (0.45..=0.55).contains(ratio)),
    );
    judgement.remark = format!(
        "The lost OSDs are of one server, since two copies may not be lost together; each primary \
         recovers {ACTIVE} objects at a time. What Ceph needs to notice is left out."
    );
    let columns = [
        "lost",
        "original, the paper, s",
        "here",
        "proposed, the paper, s",
        "ours",
        "time, ours",
        "bytes, ours",
    ];
    let title = "Recovery of 100 GB".into();
    judgement.figures =
        vec![Figure::Table(Table { title, columns: columns.map(String::from).to_vec(), rows })];
    judgement
}
