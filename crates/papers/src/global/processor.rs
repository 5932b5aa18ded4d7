//! The processor time and the device writes that a load costs: of this process, and of the disks'
//! processes (OSDs) of a cluster on this machine.

use std::{fs, ops::Sub, path::Path};

use rustix::param::clock_ticks_per_second;

/// The name of the process that serves one disk of a cluster.
const DISK_PROCESS: &str = "ceph-osd";

/// Used so far: by this process, and by all OSDs that this user may look at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    /// Seconds of the processor that this process used.
    pub(super) own: f64,
    /// Seconds of the processor that the OSDs used.
    pub(super) disks: f64,
    /// Bytes that the OSDs wrote to their devices.
    pub(super) written: f64,
}

impl Cost {
    /// The cost from the start of the processes until now.
    pub(super) fn until_now() -> Cost {
        let mut cost = Cost { own: seconds(Path::new("/proc/self")), ..Cost::default() };
        let Ok(processes) = fs::read_dir("/proc") else { return cost };
        for process in processes.flatten().map(|entry| entry.path()) {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            if name.trim_end() == DISK_PROCESS {
                cost.disks += seconds(&process);
                cost.written += written(&process);
            }
        }
        cost
    }

    /// The cells of a table for `count` operations: milliseconds an operation of this process and
    /// of the OSDs, KiB written an operation.
    pub(super) fn cells(self, count: f64) -> [String; 3] {
        [
            format!("{:.2}", 1e3 * self.own / count),
            format!("{:.2}", 1e3 * self.disks / count),
            format!("{:.0}", self.written / 1024.0 / count),
        ]
    }
}

impl Sub for Cost {
    type Output = Cost;

    fn sub(self, before: Cost) -> Cost {
        Cost {
            own: self.own - before.own,
            disks: self.disks - before.disks,
            written: self.written - before.written,
        }
    }
}

/// The headings of [`Cost::cells`].
pub(super) const COLUMNS: [&str; 3] =
    ["processor, clients, ms", "processor, OSDs, ms", "written by OSDs, KiB"];

/// User and system time: the fields 14 and 15 of `stat`, counted behind the name in brackets, which
/// may hold spaces.
fn seconds(process: &Path) -> f64 {
    let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: f64 = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / clock_ticks_per_second() as f64
}

fn written(process: &Path) -> f64 {
    let io = fs::read_to_string(process.join("io")).unwrap_or_default();
    io.lines()
        .find_map(|line| line.strip_prefix("write_bytes: "))
        .and_then(|bytes| bytes.trim().parse().ok())
        .unwrap_or(0.0)
}
