use super::*;
use crate::algorithm::concurrency::{
    cases::{case, close, number, numbers, rows},
    real::whole,
    sizing::limit_for,
};

#[test]
fn erlang_b_as_in_the_cases() {
    for row in rows(&case("little"), "erlang_b") {
        let (rate, hold, limit) = (number(row, "lam"), number(row, "S"), number(row, "C"));
        let refused = blocking(rate * hold, whole(limit));
        close(refused, number(row, "B"), 5.1e-6);
        close(rate * (1.0 - refused), number(row, "admit"), 5.1e-3);
        close(rate * hold * (1.0 - refused), number(row, "L"), 5.1e-4);
        close(limit / hold, number(row, "ceiling"), 1e-9);
    }
}

#[test]
fn erlang_c_as_in_the_cases() {
    for row in rows(&case("little"), "erlang_c") {
        let got = waiting(
            number(row, "lam"),
            number(row, "S"),
            whole(number(row, "C")),
        )
        .unwrap();
        close(got.share, number(row, "Pwait"), 5.1e-5);
        close(got.mean, number(row, "Wq"), 5.1e-5);
        close(got.queue, number(row, "Lq"), 5.1e-4);
    }
    assert_eq!(waiting(120.0, 0.25, 30), None);
}

#[test]
fn kaufman_roberts_as_in_the_cases() {
    for row in rows(&case("little"), "kaufman_roberts") {
        let classes: Vec<Class> = rows(row, "classes")
            .iter()
            .map(numbers)
            .map(|class| Class {
                load: class[0],
                permits: whole(class[1]),
            })
            .collect();
        let got = class_blocking(&classes, whole(number(row, "C")));
        for (got, expected) in got.iter().zip(numbers(&row["blocking"])) {
            close(*got, expected, 5.1e-6);
        }
    }
}

#[test]
fn sizes_as_in_the_cases() {
    for row in rows(&case("little"), "size_for_rate") {
        let row = numbers(row);
        let load = row[0] * row[1];
        close(load, row[2], 1e-9);
        assert_eq!(limit_for(row[0], row[1]), whole(row[3]));
        assert_eq!(smallest_limit(load, 0.01, 1_000), Some(whole(row[4])));
        assert_eq!(smallest_limit(load, 0.001, 1_000), Some(whole(row[5])));
    }
    assert_eq!(smallest_limit(100.0, 0.01, 50), None);
}

#[test]
fn odd_classes_do_no_harm() {
    let refused = |permits, limit| class_blocking(&[Class { load: 1.0, permits }], limit)[0];
    close(refused(31, 30), 1.0, 0.0);
    close(refused(0, 2), 0.0, 0.0);
    close(refused(1, 0), 1.0, 0.0);
    close(blocking(0.0, 0), 1.0, 0.0);
}
