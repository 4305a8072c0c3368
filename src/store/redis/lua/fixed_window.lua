-- Fixed window, see algorithm/fixed_window.rs. State: u the window's end, a the count, b its start.

local CLOCK, FIRST_HIT, LAST_HIT, CALENDAR = 1, 2, 3, 4

-- Start and end of the window that holds t. The calendar's windows come with the request; they
-- hold the present (checked before), a start beyond them belongs to the last one.
local function window_of(ask, t)
  local tag = ask.tag
  if tag == CLOCK then
    local start = t - fmod(t, ask.period)
    return start, start + ask.period
  elseif tag == CALENDAR then
    if t < ask.w1 then
      return ask.w0, ask.w1
    elseif t < ask.w2 then
      return ask.w1, ask.w2
    end
    return ask.w2, ask.w3
  end
  return t, t + ask.period
end

-- Brings the state to the time line of now and to today's limit.
local function settle_window(ask, s, now)
  if s.u <= now then
    s.ended = s.ended or s.u > 0
    s.u, s.a, s.b = 0, 0, 0
    return
  end
  local length = s.u - s.b
  if s.b - now > length then
    -- The clock stepped back by more than a window: the count moves to the window of now.
    s.changed = true
    if s.tag == CALENDAR and ask.tag == CALENDAR then
      s.b, s.u = window_of(ask, now)
    else
      s.b = now
      if s.tag == CLOCK then
        s.b = now - fmod(now, length)
      end
      s.u = s.b + length
    end
  end
  if s.tag == ask.tag and s.tag ~= CALENDAR and s.u - s.b == ask.period then
    return
  end
  -- The limit changed: the count is kept in the new window that holds now.
  local at = max(now, s.b)
  local start, finish
  s.changed = true
  if ask.tag == CLOCK or ask.tag == CALENDAR then
    start, finish = window_of(ask, at)
  else
    start, finish = s.b, s.b + ask.period
  end
  if at - s.b >= finish - start then
    s.u, s.a, s.b = 0, 0, 0
  else
    s.b, s.u = start, finish
  end
end

local function take_window(ask, s, now, allowed)
  if s.u == 0 or (allowed and ask.tag == LAST_HIT) then
    s.b, s.u = window_of(ask, max(now, s.b))
  end
  s.a = min(s.a + ask.cost, EXACT)
end

local function give_window(ask, s)
  s.a = s.a - min(ask.cost, s.a)
  if s.a == 0 then
    s.u, s.b = 0, 0
  end
end
