use onefold_lab::{device::Kindred, replay::{Plan, Speed, replay}, subject::{Choice, Scheme}, trace};
use onefold_block::Persistence;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let p = if a[3] == "strong" { Persistence::Strong } else { Persistence::Weak };
    let source = trace::open(a[1].as_ref(), trace::Assumed::default()).unwrap();
    let mut plan = Plan::new(Choice::new(a[2].parse::<Scheme>().unwrap(), p), a[4].parse::<Kindred>().unwrap());
    if a.len() > 6 { plan.choice.leftover = onefold_block::format::superblock::Leftover::Table; }
    if a[5] == "max" { plan.speed = Speed::Max; }
    let o = replay(source, &plan, &mut |_| {}).unwrap();
    let mut o2 = o.clone(); o2.write_latency.curve.clear(); o2.flush_latency.curve.clear();
    println!("{o2:#?}\nvolume {:.4} above {:.2}", o.volume(), o.points_above_ideal());
}
