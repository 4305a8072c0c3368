use std::fmt::Write as _;

use super::*;
use crate::trace::{Format, Step, Trace};

/// Every line as `time [domain] descriptors`, or its error.
fn read(options: MappingOptions, format: Option<Format>, text: &str) -> Vec<String> {
    let mapping = Mapping::new(options).unwrap();
    let mut trace = Trace::new(text.as_bytes(), format, mapping).unwrap();
    let mut record = Record::default();
    let mut lines = Vec::new();
    while let Some(Step { line, read }) = trace.read(&mut record).unwrap() {
        let shown = match read {
            Ok(()) => show(&record),
            Err(error) => error.to_string(),
        };
        lines.push(format!("{line}: {shown}"));
    }
    lines
}

fn show(record: &Record) -> String {
    let request = record.request("default");
    let mut shown = format!("{:?} {}", record.time, request.domain);
    for descriptor in &request.descriptors {
        shown.push(' ');
        notation::write(request.entries(descriptor), &mut shown);
        if let Some(cost) = descriptor.hits_addend {
            let sign = if descriptor.is_negative_hits {
                '-'
            } else {
                '+'
            };
            write!(shown, "{sign}{cost}").unwrap();
        }
        if let Some(limit) = descriptor.limit {
            let unit = limit.unit.name();
            write!(shown, "@{}/{unit}", limit.requests_per_unit).unwrap();
        }
    }
    shown
}

fn plain(text: &str) -> Vec<String> {
    read(MappingOptions::default(), None, text)
}

#[test]
fn json_lines_say_descriptors_in_three_ways() {
    let lines = plain(
        r#"{"time": 1.5, "domain": "edge", "descriptors": "user=a,path=/x;tenant=t", "cost": 3}
{"descriptors": ["user=a", {"user": "b", "n": 7, "e": ""}], "time": "1970-01-01T00:00:02Z"}

{"timestamp": 3, "hitsAddend": 0, "descriptors": [{"entries": [{"key": "k", "value": "v"}, {"key": "e"}]}]}
{"time": 4, "cost": 2, "descriptors": [{"entries": [{"key": "k", "value": "v"}], "hitsAddend": "5", "isNegativeHits": true},
{"time": 5, "cost": 2, "descriptors": [{"entries": [{"key": "k", "value": "\u00e9\n"}], "hits_addend": 0, "limit": {"requests_per_unit": 9, "unit": "MINUTE"}}]}
"#,
    );
    assert_eq!(lines[0], "1: 1.500000000 edge user=a,path=/x+3 tenant=t+3");
    assert_eq!(lines[1], "2: 2.000000000 default user=a user=b,n=7,e=");
    assert_eq!(lines[2], "4: 3.000000000 default k=v,e=+1");
    assert!(lines[3].starts_with("5: no JSON object: "), "{}", lines[3]);
    assert_eq!(lines[4], r"6: 5.000000000 default k=é\n+0@9/minute");
    assert_eq!(lines.len(), 5);
}

#[test]
fn a_table_names_its_columns() {
    let text = "time,cost,descriptors\n1,,\"user=a,path=/x;ip=::1\"\n2,5,user=a\nx,1,user=a\n3,1\n4,-2,user=a\n5,1,user\n6,1,\n";
    assert_eq!(
        plain(text),
        [
            "2: 1.000000000 default user=a,path=/x ip=::1",
            "3: 2.000000000 default user=a+5",
            "4: time: \"x\" is no time; write 2024-05-01T12:00:00.5Z, or seconds since 1970 such \
             as 1714564800.5",
            "5: 2 fields where the first line has 3",
            "6: cost: \"-2\" is no whole number",
            "7: descriptors: \"user\" has no `=`; write key=value, entries apart by `,` and \
             descriptors by `;`",
            "8: no descriptors",
        ]
    );
}

#[test]
fn an_access_log_is_mapped_by_options() {
    let options = MappingOptions {
        domain: Some("edge".to_owned()),
        descriptors: vec![
            "remote_address={downstream_remote_address|ip}".to_owned(),
            "user={x-user},path={path|path}".to_owned(),
        ],
        cost: Some("bytes_sent".to_owned()),
        ..MappingOptions::default()
    };
    let text = r#"{"start_time":"1970-01-01T00:00:01.250Z","method":"GET","path":"/a?b=1","bytes_sent":12,"x-user":"u","downstream_remote_address":"10.0.0.7:51234","domain":"x","response_code":200}
{"start_time":"1970-01-01T00:00:02Z","path":"/a","bytes_sent":0,"x-user":null,"downstream_remote_address":"10.0.0.8:1"}
{"start_time":"1970-01-01T00:00:03Z","path":"/a","bytes_sent":7,"x-user":"-"}"#;
    assert_eq!(
        read(options, None, text),
        [
            "1: 1.250000000 edge remote_address=10.0.0.7+12 user=u,path=/a+12",
            "2: 2.000000000 edge remote_address=10.0.0.8+0",
            "3: 3.000000000 edge",
        ]
    );
}

#[test]
fn what_is_no_trace_says_why() {
    let error = |text: &str, options: MappingOptions| {
        let mapping = Mapping::new(options).unwrap();
        Trace::new(text.as_bytes(), None, mapping)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        error("when,who\n1,a\n", MappingOptions::default()),
        "there is no column time or start_time or timestamp or @timestamp; the first line names: \
         when, who"
    );
    assert_eq!(
        error("time,who\n1,a\n", MappingOptions::default()),
        "there is no column descriptors; the first line names: time, who"
    );
    let options = MappingOptions {
        descriptors: vec!["user={user}".to_owned()],
        ..MappingOptions::default()
    };
    assert_eq!(
        error("time,who\n1,a\n", options),
        "there is no column user; the first line names: time, who"
    );
    let mapping = Mapping::new(MappingOptions::default()).unwrap();
    let mut empty = Trace::new(&b""[..], None, mapping).unwrap();
    assert!(empty.read(&mut Record::default()).unwrap().is_none());
}
