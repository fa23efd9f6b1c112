// Exponential smoothing of bucket means, weighted by how many points each bucket holds, right from the first on.
export function smoothed({ y, n }, share) {
  if (!share) return y;
  let [sum, weight] = [0, 0];
  return y.map((value, at) => {
    if (value === null) return null;
    const keep = share ** (n?.[at] || 1);
    sum = sum * keep + value * (1 - keep);
    weight = weight * keep + (1 - keep);
    return sum / weight;
  });
}
