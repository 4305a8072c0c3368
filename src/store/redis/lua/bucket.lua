-- Token bucket, leaky bucket and leaky queue, see algorithm/token_bucket.rs. State: the bucket is
-- full at u − a ÷ n microseconds, b the last write, p the period, n the units that come back in it.
--
-- What is missing from a full bucket is a time: q whole microseconds and r of n parts of one. The
-- products of cost or burst with the period come divided by n with the request, so that only sums
-- and comparisons are left to do here.

local function missing(s, now)
  local at = max(now, s.b)
  local q = s.u - at
  if s.u == 0 then
    return 0, 0, now
  elseif s.a > 0 then
    return q - 1, s.n - s.a, at
  end
  return q, 0, at
end

local function write_missing(s, q, r, at)
  if q == 0 and r == 0 then
    s.u, s.a, s.b = 0, 0, 0
  elseif r > 0 then
    s.u, s.a, s.b = at + q + 1, s.n - r, at
  else
    s.u, s.a, s.b = at + q, 0, at
  end
end

local function settle_bucket(ask, s, now)
  if s.u <= now then
    s.ended = s.ended or s.u > 0
    s.u, s.a, s.b = 0, 0, 0
  elseif s.b - now > s.p then
    -- The clock stepped back by more than a period: all that is missing moves to now.
    s.u, s.b, s.changed = s.u - (s.b - now), now, true
  end
  if s.p ~= ask.period or s.n ~= ask.drain then
    -- The rate changed: the units that are missing stay missing.
    local q, r, at = missing(s, now)
    local from, to = s.p, ask.period
    local units, rest = muldiv(q, s.n, from)
    rest = rest + r
    local over = fmod(rest, from)
    units, rest = units + (rest - over) / from, over
    s.p, s.n, s.changed = to, ask.drain, true
    q, r = muldiv(units, to, s.n)
    local part, part_rest = muldiv(rest, to, from)
    if part_rest > 0 then
      part = part + 1
    end
    r = r + part
    over = fmod(r, s.n)
    -- More than a new limit can hold may take longer to come back than numbers are exact for.
    write_missing(s, min(q + (r - over) / s.n, EXACT / 4), over, at)
  end
end

local function bucket_allows(ask, s, now)
  if not ask.ever then
    return false
  end
  local q, r = missing(s, now)
  return q < ask.bound_q or (q == ask.bound_q and r <= ask.bound_r)
end

local function take_bucket(ask, s, now)
  local q, r, at = missing(s, now)
  q, r = q + ask.cost_q, r + ask.cost_r
  if r >= s.n then
    q, r = q + 1, r - s.n
  end
  write_missing(s, q, r, at)
end

local function give_bucket(ask, s, now)
  local q, r, at = missing(s, now)
  q, r = q - ask.cost_q, r - ask.cost_r
  if r < 0 then
    q, r = q - 1, r + s.n
  end
  if q < 0 then
    q, r = 0, 0
  end
  write_missing(s, q, r, at)
end
