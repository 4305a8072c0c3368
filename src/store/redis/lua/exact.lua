-- Whole numbers in doubles: exact below 2^53. Times are microseconds since 1970.

local fmod, max, min = math.fmod, math.max, math.min
local pack, unpack_from = struct.pack, struct.unpack
local EXACT = 9007199254740992 -- 2^53

-- Quotient (rounded down) and remainder of a × b ÷ c, without losing a digit on the way.
-- Bounds: a, b < 2^52, c < 2^52, the quotient below 2^53.
local function muldiv(a, b, c)
  local product = a * b
  if product < EXACT then
    local rest = fmod(product, c)
    return (product - rest) / c, rest
  end
  if b >= c then
    local rest = fmod(b, c)
    local quotient, remainder = muldiv(a, rest, c)
    return a * ((b - rest) / c) + quotient, remainder
  end
  -- a = high × step + low with step × b below 2^53: what does not fit is divided by parts.
  local step = (EXACT - 1 - fmod(EXACT - 1, c)) / c
  local low = fmod(a, step)
  local high = (a - low) / step
  local part = step * b
  local part_rest = fmod(part, c)
  local quotient, remainder = muldiv(high, part_rest, c)
  local last = low * b + remainder
  local last_rest = fmod(last, c)
  return high * ((part - part_rest) / c) + quotient + (last - last_rest) / c, last_rest
end
