// Exponential smoothing of bucket means, weighted by how many points each bucket holds, right from the first on.
export function smoothed({ y, n }, share) {
  if (!share) return y;
  let [mean, weight] = [0, 0];
  return y.map((value, at) => {
    if (value === null) return null;
    const keep = share ** (n?.[at] || 1);
    weight = weight * keep + (1 - keep);
    mean += (value - mean) * ((1 - keep) / weight); // so that what is constant stays it exactly
    return mean;
  });
}
