-- Sliding window counter, see algorithm/sliding_window.rs. State: a the previous window's count,
-- b the present one's, u two periods after the start of the present one, p the period.

-- Units used at now, rounded down, and the instant this holds at.
local function estimate(s, now)
  local start = s.u - s.p - s.p
  local at = max(now, start)
  if s.a == 0 then
    return s.b, at
  end
  return s.b + (muldiv(s.a, s.p - (at - start), s.p)), at
end

local function settle_sliding(ask, s, now)
  local period, stored = s.p, s.u
  if s.u <= now then
    s.ended = s.ended or s.u > 0
    s.u, s.a, s.b = 0, 0, 0
    stored = 0
  else
    local start = s.u - period - period
    if now >= start + period then
      if s.b == 0 then
        s.u, s.a = 0, 0
      else
        s.u, s.a, s.b = s.u + period, s.b, 0
      end
    elseif start - now > period then
      -- The clock stepped back by more than a period: to the window after the present one.
      local ahead = now + period
      s.u = ahead - fmod(ahead, period) + period + period
    end
  end
  s.changed = s.changed or s.u ~= stored
  if period ~= ask.period then
    -- The period changed: what is used counts as used in the window that holds now.
    if s.u > 0 then
      local used, at = estimate(s, now)
      if used == 0 then
        s.u, s.a, s.b = 0, 0, 0
      else
        s.u = at - fmod(at, ask.period) + ask.period + ask.period
        s.a, s.b = 0, used
      end
    end
    s.p, s.changed = ask.period, true
  end
end

local function take_sliding(ask, s, now)
  if s.u == 0 then
    s.u = now - fmod(now, s.p) + s.p + s.p
  end
  s.b = s.b + ask.cost
end

local function give_sliding(ask, s)
  local from_present = min(ask.cost, s.b)
  s.b = s.b - from_present
  s.a = s.a - min(ask.cost - from_present, s.a)
  if s.a == 0 and s.b == 0 then
    s.u = 0
  end
end
